"""The command about a Kubernetes manifest, which is one of `kubectl torchrelay`, too."""

from __future__ import annotations

import typer

manifest = typer.Typer()
FOR_THE_WEBHOOK = {"allow_extra_args": True, "ignore_unknown_options": True, "help_option_names": []}
"""Settings of a command whose options are read where the webhook's are."""


def help_of_inject(example: str) -> str:
    """Return the help of `inject`. `example`: as it is called by this program."""
    return (
        "Print a Kubernetes manifest with its pods prepared, as the webhook would. Asks no cluster. Options: `inject --help`."
        f"\n\nExample: {example}"
    )


@manifest.command(
    context_settings=FOR_THE_WEBHOOK, add_help_option=False, help=help_of_inject("torchrelay inject -f job.yaml")
)
def inject(context: typer.Context) -> int:
    """Hand over to the part that knows pods."""
    from torchrelay.cli.commands import inject as command

    return command.inject(context.args)
