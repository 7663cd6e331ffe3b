"""`torchrelay`: all of its commands."""

from __future__ import annotations

from importlib import metadata
from typing import Annotated

import typer

from torchrelay.cli.app.jobs import jobs
from torchrelay.cli.app.kept_runs import kept_runs
from torchrelay.cli.app.manifest import manifest
from torchrelay.cli.app.scripts import scripts
from torchrelay.cli.commands.bench import bench

app = typer.Typer(
    name="torchrelay",
    help="Keeps a PyTorch training job running when a process, a GPU or a node fails. The script stays as it is.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)
for _commands in (scripts, jobs, kept_runs, manifest, bench):
    app.add_typer(_commands)


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"torchrelay {metadata.version('torchrelay')}")
        raise typer.Exit()


@app.callback()
def torchrelay(
    version: Annotated[
        bool, typer.Option("--version", help="Print the version and end.", callback=_print_version, is_eager=True)
    ] = False,
) -> None:
    pass
