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

from torchrelay.cli import machine
from torchrelay.cli.command_line import arguments as a
from torchrelay.cli.command_line import checked
from torchrelay.cli.command_line.given import GivenOptions, takes_options_of_a_run
from torchrelay.cli.commands.bench import bench
from torchrelay.protocol.names import DEFAULT_DASHBOARD_PORT

app = typer.Typer(
    name="torchrelay",
    help="Keeps a PyTorch training job running when a process, a GPU or a node fails. The script stays as it is.",
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
def run(given: GivenOptions) -> int:
    return _launch(given)


def _launch(given: GivenOptions) -> int:
    options = checked.check(given, machine.LocalMachine(), os.environ)
    from torchrelay.cli.run import launch

    return asyncio.run(launch.launch(options, tuple(sys.argv[1:])))


@app.command(context_settings=_OF_A_SCRIPT, epilog=_EPILOG)
@takes_options_of_a_run(
    "Look at this machine, and at the command line of a run if there is one, for what would go wrong. Starts no training.\n\n"
    "Exit code: 0 all is well, or nothing worse than warnings; 1 something is wrong.",
    script="",
)
def doctor(given: GivenOptions) -> int:
    from torchrelay.cli.commands import doctor as command

    return command.doctor(given, os.environ)


@app.command(context_settings=_OF_A_SCRIPT, epilog=_EPILOG)
def check(
    script: a.Script,
    script_args: a.ScriptWords = None,
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
    given = GivenOptions(
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
    options = checked.check(given, machine.LocalMachine(), os.environ)
    options = dataclasses.replace(options, check_steps=steps, check_batches=batches)
    from torchrelay.cli.commands import check as command

    return asyncio.run(command.check(options, tuple(sys.argv[1:]), timeout_s, as_json))


@app.command(context_settings=_OF_A_SCRIPT, epilog=_EPILOG)
def drill(
    script: a.Script,
    script_args: a.ScriptWords = None,
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
    wanted: a.RunId = None,
    as_json: a.AsJson = False,
    watch: Annotated[bool, typer.Option("--watch", help="Print it again each second until the job ends.")] = False,
) -> int:
    """Show the running jobs: ranks, steps, spares, generation, protection, last migration.

    Example: torchrelay status --run pretrain --watch
    """
    from torchrelay.cli.jobs import status as command

    return asyncio.run(command.show_status(wanted, as_json, watch))


@app.command()
def top(wanted: a.RunId = None) -> int:
    """Watch the running jobs on this terminal: steps, goodput, ranks, spares, migrations, and what is left to do.

    q or Ctrl-C ends the view, and no job.

    Example: torchrelay top --run pretrain
    """
    from torchrelay.cli.jobs import top as command

    return asyncio.run(command.top(wanted))


@app.command()
def events(
    wanted: a.RunId = None,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on until the job ends.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object a line, as in --events.")] = False,
) -> int:
    """Tell what has happened to the running job so far, in words, with the time of each.

    Example: torchrelay events --follow
    """
    from torchrelay.cli.jobs import events as command

    return asyncio.run(command.show_events(wanted, follow, as_json))


@app.command()
def migrate(
    rank: Annotated[int, typer.Option("--rank", min=0, help="The rank that moves to a spare.")],
    reason: Annotated[str, typer.Option("--reason", help="Why; kept in the events and shown by `status`.")],
    wanted: a.RunId = None,
    no_wait: Annotated[bool, typer.Option("--no-wait", help="End as soon as it is accepted.")] = False,
) -> int:
    """Move a rank of the running job to a spare, without losing a step.

    Exit code: 0 done, 1 given up (the job went on as before) or too late, 2 refused.

    Example: torchrelay migrate --rank 2 --reason "the fan is loud"
    """
    from torchrelay.cli.jobs import migrate as command

    return asyncio.run(command.migrate(rank, reason, wanted, wait=not no_wait))


@app.command()
def checkpoint(
    wanted: Annotated[
        str | None, typer.Argument(metavar="RUN", help="Its id or name; needed if several jobs run.")
    ] = None,
    reason: Annotated[
        str, typer.Option("--reason", help="Why; kept in the events and shown by `status`.")
    ] = "torchrelay checkpoint",
    wait: Annotated[
        bool, typer.Option("--wait/--no-wait", help="End when it is saved, or as soon as it is accepted.")
    ] = True,
    as_json: a.AsJson = False,
) -> int:
    """Save a checkpoint of the running job, at one of its next steps; the job goes on at once.

    It lies where just-in-time checkpoints lie (`run --jit-dir`). `run --resume` reads it, and so does an automatic restart.

    Exit code: 0 saved, 1 nothing was saved (the job goes on as before), 2 refused.

    Example: torchrelay checkpoint pretrain --reason "before the maintenance"
    """
    from torchrelay.cli.jobs import checkpoint as command

    return asyncio.run(command.checkpoint(reason, wanted, wait, as_json))


@app.command()
def drain(
    node: Annotated[str, typer.Argument(metavar="NODE", help="The node, as `status` names it.")],
    reason: Annotated[str, typer.Option("--reason", help="Why; kept in the events and shown by `status`.")],
    wanted: a.RunId = None,
    timeout_s: Annotated[
        float | None, typer.Option("--timeout", metavar="SECONDS", min=0.0, help="How long to wait. Default: no limit.")
    ] = None,
) -> int:
    """Move all ranks of the running job away from a node, without losing a step, and say when the node is free.

    The node stays in quarantine: `torchrelay quarantine clear NODE` gives it back.

    Exit code: 0 it is free, 1 ranks are still there, 2 refused.

    Example: torchrelay drain n1 --reason "new switch in rack 7"
    """
    from torchrelay.cli.jobs import drain as command

    return asyncio.run(command.drain(node, reason, wanted, timeout_s))


@app.command()
def stop(
    wanted: a.RunId = None,
    no_wait: Annotated[bool, typer.Option("--no-wait", help="End as soon as the job is told to.")] = False,
) -> int:
    """End the running job on all its machines, as Ctrl-C at its command would.

    Example: torchrelay stop --run pretrain
    """
    from torchrelay.cli.jobs import stop as command

    return asyncio.run(command.stop(wanted, wait=not no_wait))


@app.command()
def history(
    count: Annotated[int, typer.Option("--count", "-n", min=1, help="How many, the newest first.")] = 20,
    as_json: a.AsJson = False,
) -> int:
    """List the runs that are kept: when each began, how far it came, its goodput, its migrations, and how it ended.

    Example: torchrelay history -n 5
    """
    from torchrelay.cli.history import listing as command

    return asyncio.run(command.history(count, as_json))


@app.command()
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


@app.command()
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


quarantine = typer.Typer(
    name="quarantine", help="List, add and clear what is given no rank: devices and nodes.", no_args_is_help=True
)
app.add_typer(quarantine)
_SUBJECT = typer.Argument(metavar="DEVICE", help="Device or node, as `status` names it.")


@quarantine.command("list")
def quarantine_list(wanted: a.RunId = None, as_json: a.AsJson = False) -> int:
    """Show which devices and nodes of the running job are in quarantine, and why."""
    from torchrelay.cli.jobs import quarantine as command

    return asyncio.run(command.show(wanted, as_json))


@quarantine.command("add")
def quarantine_add(
    subject: Annotated[str, _SUBJECT],
    reason: Annotated[str, typer.Option("--reason", help="Why; kept in the events and shown by `status`.")],
    wanted: a.RunId = None,
) -> int:
    """Give a device or a node no rank any more. Ranks that use it move to spares; `drain` does so too, and waits.

    Exit code: 0 done, 2 refused.
    """
    from torchrelay.cli.jobs import quarantine as command

    return asyncio.run(command.add(subject, reason, wanted))


@quarantine.command("clear")
def quarantine_clear(
    subject: Annotated[str, _SUBJECT],
    reason: Annotated[str, typer.Option("--reason", help="Why it may be used again; kept in the events.")],
    check: Annotated[
        bool, typer.Option("--check", help="Only if its node, which looks at it now, finds it well.")
    ] = False,
    wanted: a.RunId = None,
) -> int:
    """Take a device or a node of the running job out of quarantine.

    Exit code: 0 done, or with --check being looked at; 2 it is not in quarantine.
    """
    from torchrelay.cli.jobs import quarantine as command

    return asyncio.run(command.clear(subject, reason, wanted, check))


spares = typer.Typer(name="spares", invoke_without_command=True)
app.add_typer(spares)


@spares.callback()
def spares_list(context: typer.Context, wanted: a.RunId = None, as_json: a.AsJson = False) -> int:
    """Show each spare of the running job: its state, node and age, and why there are not more. `spares add` makes more.

    Example: torchrelay spares --run pretrain
    """
    if context.invoked_subcommand is not None:
        return 0
    from torchrelay.cli.jobs import spares as command

    return asyncio.run(command.show(wanted, as_json))


@spares.command("add")
def spares_add(
    count: Annotated[int, typer.Argument(metavar="N", min=1, help="How many more.")],
    node: Annotated[
        str, typer.Option("--node", metavar="NODE", help="Where, as `status` names it. Default: where the fewest are.")
    ] = "",
    wanted: a.RunId = None,
    no_wait: Annotated[bool, typer.Option("--no-wait", help="End as soon as it is accepted.")] = False,
) -> int:
    """Have more spares in the running job from now on, and wait until they are ready.

    Each takes as much memory as a rank. On a machine with GPUs each needs one that is free.

    Exit code: 0 they are ready, 1 some will not be, 2 refused.

    Example: torchrelay spares add 1 --run pretrain
    """
    from torchrelay.cli.jobs import spares as command

    return asyncio.run(command.add(count, node, wanted, wait=not no_wait))


@app.command()
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


@app.command()
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


@app.command(
    context_settings={"allow_extra_args": True, "ignore_unknown_options": True, "help_option_names": []},
    add_help_option=False,
)
def inject(context: typer.Context) -> int:
    """Print a Kubernetes manifest with its pods prepared, as the webhook would. Asks no cluster. Options: `inject --help`."""
    from torchrelay.cli.commands import inject as command

    return command.inject(context.args)
