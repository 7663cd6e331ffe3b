"""The commands. What they do is imported when they are called: a refused command line has not loaded gRPC."""

from __future__ import annotations

import asyncio
import dataclasses
import os
import sys
from importlib import metadata
from pathlib import Path
from typing import Annotated

import typer

from torchrelay.cli import arguments as a
from torchrelay.cli import machine, options
from torchrelay.cli.bench import bench
from torchrelay.cli.given import takes_options_of_a_run

app = typer.Typer(
    name="torchrelay",
    help="Keeps a PyTorch training job running when a process, a GPU or a node fails. The script stays as it is.",
    add_completion=False,
    pretty_exceptions_enable=False,
)
app.add_typer(bench)


def _normalize(option: str) -> str:
    """torchrun takes both spellings of every option."""
    return option.replace("_", "-")


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


_OF_A_SCRIPT = {"allow_interspersed_args": False, "token_normalize_func": _normalize}
_EPILOG = "Everything after the script belongs to the script."


@app.command(context_settings=_OF_A_SCRIPT, epilog=_EPILOG)
@takes_options_of_a_run("Run a training script, protected. A drop-in for torchrun.")
def run(given: options.GivenOptions) -> int:
    return _launch(given)


def _launch(given: options.GivenOptions) -> int:
    checked = options.check(given, machine.LocalMachine(), os.environ)
    from torchrelay.cli import launch

    return asyncio.run(launch.launch(checked, tuple(sys.argv[1:])))


@app.command(context_settings=_OF_A_SCRIPT, epilog=_EPILOG)
@takes_options_of_a_run(
    "Look at this machine, and at the command line of a run if there is one, for what would go wrong. Starts no training.\n\n"
    "Exit code: 0 all is well, or nothing worse than warnings; 1 something is wrong.",
    script="",
)
def doctor(given: options.GivenOptions) -> int:
    from torchrelay.cli import doctor as command

    return command.doctor(given, os.environ)


@app.command(context_settings=_OF_A_SCRIPT, epilog=_EPILOG)
def check(
    script: a.Script,
    script_args: a.ScriptArgs = None,
    nproc_per_node: a.NprocPerNode = "1",
    master_port: a.MasterPort = None,
    module: a.Module = False,
    no_python: a.NoPython = False,
    standalone: a.Standalone = False,
    steps: Annotated[int, typer.Option(min=2, help="After how many optimizer steps the report is made.")] = 5,
    batches: Annotated[
        int,
        typer.Option(metavar="N", min=0, help="Cut data loaders to N batches, so that an epoch's end is seen; 0: not."),
    ] = 8,
    timeout_s: Annotated[float, typer.Option("--timeout", min=1.0, help="Seconds that this may take.")] = 600.0,
    buddy_every: a.BuddyEvery = 0,
    buddy_sync: a.BuddySync = False,
    events: a.Events = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the report as JSON.")] = False,
) -> int:
    """Say what torchrelay can protect of a training script: runs its set-up, a few steps and a cut epoch's end.

    Exit code: 0 protected, 3 partly, 4 not protected, 1 the script failed, 2 the command line cannot work.
    """
    given = options.GivenOptions(
        script=script,
        script_args=tuple(script_args or ()),
        nproc_per_node=nproc_per_node,
        master_port=master_port,
        module=module,
        no_python=no_python,
        buddy_every=buddy_every,
        buddy_sync=buddy_sync,
        events=events,
    )
    checked = options.check(given, machine.LocalMachine(), os.environ)
    checked = dataclasses.replace(checked, check_steps=steps, check_batches=batches)
    from torchrelay.cli import check as command

    return asyncio.run(command.check(checked, tuple(sys.argv[1:]), timeout_s, as_json))


@app.command(context_settings=_OF_A_SCRIPT, epilog=_EPILOG)
def drill(
    script: a.Script,
    script_args: a.ScriptArgs = None,
    nproc_per_node: a.NprocPerNode = "2",
    module: a.Module = False,
    faults: Annotated[int, typer.Option(metavar="N", min=1, help="How many faults strike the script.")] = 12,
    steps: Annotated[
        int, typer.Option(metavar="N", min=0, help="End each run after N optimizer steps; 0: at the script's own end.")
    ] = 40,
    seed: Annotated[int, typer.Option(help="Of the choice of ranks, steps and phases.")] = 0,
    phases: Annotated[str, typer.Option(metavar="LIST", help="Only these phases of a step, as in data,backward.")] = "",
    kinds: Annotated[str, typer.Option(metavar="LIST", help="Only these kinds of faults, as in kill,planned.")] = "",
    together: Annotated[int, typer.Option(metavar="N", min=1, help="Faults that may share a run.")] = 4,
    workdir: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Working folder of the script, copied for each run. Default: this one."),
    ] = None,
    timeout_s: Annotated[float, typer.Option("--timeout", min=1.0, help="Seconds for a run without faults.")] = 600.0,
    buddy_every: a.BuddyEvery = 0,
    buddy_sync: a.BuddySync = False,
    json_file: Annotated[Path | None, typer.Option("--json", metavar="FILE", help="Write the result as JSON.")] = None,
    picture: Annotated[Path | None, typer.Option(metavar="FILE", help="Write the table as a PNG.")] = None,
    keep: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Keep events and output of what was not identical.")
    ] = None,
) -> int:
    """Strike a training script with faults, and say whether it computes bitwise the same: do this before you rely on it.

    Exit code: 0 all identical, 3 same numbers after more steps were done again, 4 some refused as announced, 5 a promise was not
    kept, 6 wrong numbers, 7 the script is not deterministic, 8 nothing struck, 1 it does not run with torchrun, 2 the command
    line cannot work.
    """
    from torchrelay.cli.drill import options as drill_options

    given = drill_options.GivenDrill(
        script=script,
        script_args=tuple(script_args or ()),
        nproc_per_node=nproc_per_node,
        module=module,
        faults=faults,
        steps=steps,
        seed=seed,
        phases=phases,
        kinds=kinds,
        together=together,
        workdir=workdir,
        timeout_s=timeout_s,
        buddy_every=buddy_every,
        buddy_sync=buddy_sync,
        json_file=json_file,
        picture=picture,
        keep=keep,
    )
    checked = drill_options.check(given, machine.LocalMachine(), os.environ, tuple(sys.argv[1:]))
    from torchrelay.cli.drill import command

    return command.drill(checked)


@app.command()
def status(
    run_id: a.RunId = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print it as JSON.")] = False,
    watch: Annotated[bool, typer.Option("--watch", help="Print it again each second until the job ends.")] = False,
) -> int:
    """Show the running job: ranks, steps, spares, generation, protection, last migration."""
    from torchrelay.cli import status as command

    return asyncio.run(command.show_status(run_id, as_json, watch))


@app.command()
def migrate(
    rank: Annotated[int, typer.Option("--rank", min=0, help="The rank that moves to a spare.")],
    reason: Annotated[str, typer.Option("--reason", help="Why; kept in the events and shown by `status`.")],
    run_id: a.RunId = None,
    no_wait: Annotated[bool, typer.Option("--no-wait", help="End as soon as it is accepted.")] = False,
) -> int:
    """Move a rank of the running job to a spare, without losing a step.

    Exit code: 0 done, 1 given up (the job went on as before) or too late, 2 refused.
    """
    from torchrelay.cli import migrate as command

    return asyncio.run(command.migrate(rank, reason, run_id, wait=not no_wait))


@app.command()
def clear(
    subject: Annotated[str, typer.Argument(metavar="DEVICE", help="Device or node, as `status` names it.")],
    reason: Annotated[str, typer.Option("--reason", help="Why it may be used again; kept in the events.")],
    check: Annotated[
        bool, typer.Option("--check", help="Only if its node, which looks at it now, finds it well.")
    ] = False,
    run_id: a.RunId = None,
) -> int:
    """Take a device or a node of the running job out of quarantine."""
    from torchrelay.cli import clear as command

    return asyncio.run(command.clear(subject, reason, run_id, check))


@app.command()
def dashboard(
    events: Annotated[
        Path | None,
        typer.Argument(metavar="EVENTS", help="File of `run --events`. Without it: this user's running jobs."),
    ] = None,
    run_id: a.RunId = None,
    host: Annotated[str, typer.Option("--host", help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option("--port", min=0, max=65535, help="0: a free one.")] = 8471,
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
    from torchrelay.cli import dashboard as command

    wanted = command.DashboardOptions(events, run_id, host, port, tuple(allow_host or ()), token_file)
    return asyncio.run(command.dashboard(wanted))


@app.command()
def plot(
    events: Annotated[Path, typer.Argument(metavar="EVENTS", help="File of `run --events`.")],
    out: Annotated[Path, typer.Option("-o", "--out", metavar="FILE", help="Picture to write.")] = Path("run.png"),
) -> int:
    """Draw what happened to a run: steps over time with each standstill, and the phases of each migration."""
    from torchrelay.cli import plot as command

    return command.plot(events, out)


@app.command(
    context_settings={"allow_extra_args": True, "ignore_unknown_options": True, "help_option_names": []},
    add_help_option=False,
)
def inject(context: typer.Context) -> int:
    """Print a Kubernetes manifest with its pods prepared, as the webhook would. Asks no cluster. Options: `inject --help`."""
    from torchrelay.cli import inject as command

    return command.inject(context.args)
