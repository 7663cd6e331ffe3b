"""The commands about what a run has been: those that are kept after their end, and those that go on."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from typing import Annotated

import typer

from torchrelay.cli.command_line import arguments as a
from torchrelay.protocol.names import DEFAULT_DASHBOARD_PORT

kept_runs = typer.Typer()


@kept_runs.command()
def history(
    count: Annotated[int, typer.Option("--count", "-n", min=1, help="How many, the newest first.")] = 20,
    as_json: a.AsJson = False,
) -> int:
    """List the runs that are kept: when each began, how far it came, its goodput, its migrations, and how it ended.

    Example: torchrelay history -n 5
    """
    from torchrelay.cli.history import listing as command

    return asyncio.run(command.history(count, as_json))


@kept_runs.command()
def explain(
    migration: Annotated[
        str | None, typer.Argument(metavar="MIGRATION", help="As `history` or `status` names it. Default: the latest.")
    ] = None,
    wanted: Annotated[
        str | None,
        typer.Option(
            "--run", metavar="ID", help="Of which run, by its id or name, running or over. Default: the newest."
        ),
    ] = None,
    as_json: a.AsJson = False,
) -> int:
    """Tell the story of a migration: what was seen, by whom, which rule decided, what it cost, and what is left to do.

    Example: torchrelay explain m2 --run pretrain
    """
    from torchrelay.cli.history import explain as command

    return asyncio.run(command.explain(migration, wanted, as_json))


@kept_runs.command()
def report(
    wanted: Annotated[
        str | None, typer.Argument(metavar="RUN", help="Its id or name, running or over. Default: the newest.")
    ] = None,
    checkpoint_every: a.CheckpointTime = "30m",
    restart: a.RestartTime = "5m",
    form: a.Form = "text",
) -> int:
    """Say what protection cost a run and what it saved, against a restart from a checkpoint for each loss.

    Example: torchrelay report pretrain --checkpoint-every 1h --restart 10m --format markdown
    """
    from torchrelay.cli.history import report as command

    assumed, chosen = command.what_is_assumed(checkpoint_every, restart), command.which_form(form)
    return asyncio.run(command.report(wanted, assumed, chosen))


@kept_runs.command()
def dashboard(
    finished: Annotated[
        str | None,
        typer.Argument(
            metavar="RUN",
            help="File of `run --events`, or id or name of a kept run. Without it: this user's running jobs.",
        ),
    ] = None,
    run_id: a.RunId = None,
    host: Annotated[str, typer.Option("--host", help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option("--port", min=0, max=65535, help="0: a free one.")] = DEFAULT_DASHBOARD_PORT,
    allow_host: Annotated[
        list[str] | None,
        typer.Option("--allow-host", metavar="NAME", help="Name under which a browser reaches it; may be repeated."),
    ] = None,
    token_file: Annotated[
        Path | None,
        typer.Option(
            "--token-file",
            metavar="FILE",
            help="Whoever has this token may move ranks and clear devices. Made if absent.",
        ),
    ] = None,
) -> int:
    """Serve a page that shows running jobs, or a finished run: ranks, steps, migrations, spares, and what is left to do.

    It is read-only without --token-file, and reached from this machine alone unless --host says otherwise.
    """
    from torchrelay.cli.commands import dashboard as command
    from torchrelay.cli.folders.history import events_file

    file = events_file(os.environ, finished) if finished is not None else None
    wanted = command.DashboardOptions(file, run_id, host, port, tuple(allow_host or ()), token_file)
    return asyncio.run(command.dashboard(wanted))


@kept_runs.command()
def plot(
    finished: Annotated[
        str | None,
        typer.Argument(
            metavar="RUN", help="File of `run --events`, or id or name of a kept run. Default: the newest of these."
        ),
    ] = None,
    out: Annotated[Path, typer.Option("-o", "--out", metavar="FILE", help="Picture to write.")] = Path("run.png"),
) -> int:
    """Draw what happened to a run: steps over time with each standstill, and the phases of each migration."""
    from torchrelay.cli.commands import plot as command
    from torchrelay.cli.folders.history import events_file

    return command.plot(events_file(os.environ, finished), out)
