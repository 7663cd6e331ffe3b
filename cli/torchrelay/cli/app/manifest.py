"""The command about a Kubernetes manifest, which is one of `kubectl torchrelay`, too."""

from __future__ import annotations

import typer

manifest = typer.Typer()
FOR_THE_WEBHOOK = {"allow_extra_args": True, "ignore_unknown_options": True, "help_option_names": []}
"""Settings of a command whose options are read where the webhook's are."""


@manifest.command(context_settings=FOR_THE_WEBHOOK, add_help_option=False)
def inject(context: typer.Context) -> int:
    """Print a Kubernetes manifest with its pods prepared, as the webhook would. Asks no cluster. Options: `inject --help`."""
    from torchrelay.cli.commands import inject as command

    return command.inject(context.args)
