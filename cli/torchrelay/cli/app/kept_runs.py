"""The commands about what a run has been: those that are kept after their end, and those that go on."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from typing import Annotated

import typer

from torchrelay.cli.command_line import arguments as a
from torchrelay.cli.command_line import completion as completions
from torchrelay.cli.command_line.which_job import which_job
from torchrelay.protocol.names import DEFAULT_DASHBOARD_PORT

kept_runs = typer.Typer()


@kept_runs.command()
def history(
    job: Annotated[
        str | None,
        typer.Argument(
            metavar="RUN", help="Only runs of this id or name. Default: all.", autocompletion=completions.kept_runs
        ),
    ] = None,
    count: Annotated[int, typer.Option("--count", "-n", min=1, help="How many, the newest first.")] = 20,
    as_json: a.AsJson = False,
) -> int:
    """List the runs that are kept: when each began, how far it came, its goodput, its migrations, and how it ended.

    Example: torchrelay history pretrain -n 5
    """
    from torchrelay.cli.history import listing as command

    return asyncio.run(command.history(count, as_json, job))


@kept_runs.command()
def explain(
    migration: Annotated[
        str | None, typer.Argument(metavar="MIGRATION", help="As `history` or `status` names it. Default: the latest.")
    ] = None,
    job: a.Run = None,
    run: a.KeptRunId = None,
    as_json: a.AsJson = False,
) -> int:
    """Tell the story of a migration: what was seen, by whom, which rule decided, what it cost, and what is left to do.

    Example: torchrelay explain m2 pretrain
    """
    from torchrelay.cli.history import explain as command

    return asyncio.run(command.explain(migration, which_job(job, run), as_json))


@kept_runs.command()
def report(
    job: a.Run = None,
    run: a.KeptRunId = None,
    checkpoint_every: a.CheckpointTime = "30m",
    restart: a.RestartTime = "5m",
    form: a.Form = "text",
    as_json: a.AsJson = False,
    picture: a.Picture = None,
) -> int:
    """Say what protection cost a run and what it saved, against a restart from a checkpoint for each loss.

    Example: torchrelay report pretrain --checkpoint-every 1h --restart 10m --format markdown
    """
    from torchrelay.cli.history import report as command

    assumed = command.what_is_assumed(checkpoint_every, restart)
    chosen = command.which_form(form, as_json)
    return asyncio.run(command.report(which_job(job, run), assumed, chosen, picture))


@kept_runs.command()
def dashboard(
    finished: Annotated[
        str | None,
        typer.Argument(
            metavar="RUN",
            help="File of `run --events`, or id or name of a kept run. Without it: running jobs, and the newest that are kept.",
            autocompletion=completions.kept_runs,
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

    Example: torchrelay dashboard pretrain --port 0
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
            metavar="RUN",
            help="File of `run --events`, or id or name of a kept run. Default: the newest of these.",
            autocompletion=completions.kept_runs,
        ),
    ] = None,
    out: Annotated[Path, typer.Option("-o", "--out", metavar="FILE", help="Picture to write.")] = Path("run.png"),
) -> int:
    """Draw what happened to a run: steps over time with each standstill, and the phases of each migration.

    Example: torchrelay plot pretrain -o run.png
    """
    from torchrelay.cli.commands import plot as command
    from torchrelay.cli.folders.history import events_file

    return command.plot(events_file(os.environ, finished), out)
