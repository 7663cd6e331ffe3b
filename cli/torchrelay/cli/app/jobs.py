"""The commands about a job that runs: what it does, and what it is to do.

Each takes the job as its last word, as `kubectl torchrelay` does, or with --run.
"""

from __future__ import annotations

import asyncio
from typing import Annotated

import typer

from torchrelay.cli.command_line import arguments as a
from torchrelay.cli.command_line.which_job import which_job
from torchrelay.protocol.errors import UserError

jobs = typer.Typer()


@jobs.command()
def status(
    job: a.Job = None,
    run: a.RunId = None,
    as_json: a.AsJson = False,
    watch: Annotated[
        bool, typer.Option("--watch", "-w", help="Print it again each second until the job ends.")
    ] = False,
) -> int:
    """Show the running jobs: ranks, steps, spares, generation, protection, last migration.

    Example: torchrelay status pretrain --watch
    """
    from torchrelay.cli.jobs import status as command

    return asyncio.run(command.show_status(which_job(job, run), as_json, watch))


@jobs.command()
def top(job: a.Job = None, run: a.RunId = None) -> int:
    """Watch the running jobs on this terminal: steps, goodput, ranks, spares, migrations, and what is left to do.

    q or Ctrl-C ends the view, and no job.

    Example: torchrelay top pretrain
    """
    from torchrelay.cli.jobs import top as command

    return asyncio.run(command.top(which_job(job, run)))


@jobs.command()
def events(
    job: a.Run = None,
    run: a.KeptRunId = None,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on until the job ends.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object a line, as in --events.")] = False,
) -> int:
    """Tell what has happened to the running job so far, or to one that is over and kept, in words, with the time of each.

    Example: torchrelay events --follow
    """
    from torchrelay.cli.jobs import events as command

    return asyncio.run(command.show_events(which_job(job, run), follow, as_json))


@jobs.command()
def migrate(
    rank: Annotated[int, typer.Option("--rank", min=0, help="The rank that moves to a spare.")],
    reason: a.Reason,
    job: a.Job = None,
    run: a.RunId = None,
    no_wait: a.NoWait = False,
    as_json: a.AsJson = False,
) -> int:
    """Move a rank of the running job to a spare, without losing a step.

    Exit code: 0 done, 1 given up (the job went on as before) or too late, 2 refused.

    Example: torchrelay migrate pretrain --rank 2 --reason "the fan is loud"
    """
    from torchrelay.cli.jobs import migrate as command

    return asyncio.run(command.migrate(rank, reason, which_job(job, run), wait=not no_wait, as_json=as_json))


@jobs.command()
def checkpoint(
    job: a.Job = None,
    run: a.RunId = None,
    reason: a.Reason = "torchrelay checkpoint",
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

    return asyncio.run(command.checkpoint(reason, which_job(job, run), wait, as_json))


@jobs.command()
def drain(
    node: Annotated[str, typer.Argument(metavar="NODE", help="The node, as `status` names it.")],
    reason: a.Reason,
    job: a.Job = None,
    run: a.RunId = None,
    timeout_s: Annotated[
        float | None, typer.Option("--timeout", metavar="SECONDS", min=0.0, help="How long to wait. Default: no limit.")
    ] = None,
    as_json: a.AsJson = False,
) -> int:
    """Move all ranks of the running job away from a node, without losing a step, and say when the node is free.

    The node stays in quarantine: `torchrelay quarantine clear NODE` gives it back.

    Exit code: 0 it is free, 1 ranks are still there, 2 refused.

    Example: torchrelay drain n1 pretrain --reason "new switch in rack 7"
    """
    from torchrelay.cli.jobs import drain as command

    return asyncio.run(command.drain(node, reason, which_job(job, run), timeout_s, as_json))


@jobs.command()
def stop(
    job: a.Job = None,
    run: a.RunId = None,
    no_wait: Annotated[bool, typer.Option("--no-wait", help="End as soon as the job is told to.")] = False,
    as_json: a.AsJson = False,
) -> int:
    """End the running job on all its machines, as Ctrl-C at its command would.

    Example: torchrelay stop pretrain
    """
    from torchrelay.cli.jobs import stop as command

    return asyncio.run(command.stop(which_job(job, run), wait=not no_wait, as_json=as_json))


quarantine = typer.Typer(
    name="quarantine", help="List, add and clear what is given no rank: devices and nodes.", no_args_is_help=True
)
jobs.add_typer(quarantine)
_SUBJECT = typer.Argument(metavar="DEVICE", help="Device or node, as `status` names it.")


@quarantine.command("list")
def quarantine_list(job: a.Job = None, run: a.RunId = None, as_json: a.AsJson = False) -> int:
    """Show which devices and nodes of the running job are in quarantine, and why.

    Example: torchrelay quarantine list pretrain
    """
    from torchrelay.cli.jobs import quarantine as command

    return asyncio.run(command.show(which_job(job, run), as_json))


@quarantine.command("add")
def quarantine_add(
    subject: Annotated[str, _SUBJECT],
    reason: a.Reason,
    job: a.Job = None,
    run: a.RunId = None,
    as_json: a.AsJson = False,
) -> int:
    """Give a device or a node no rank any more. Ranks that use it move to spares; `drain` does so too, and waits.

    Exit code: 0 done, 2 refused.

    Example: torchrelay quarantine add n1 pretrain --reason "its fan is loud"
    """
    from torchrelay.cli.jobs import quarantine as command

    return asyncio.run(command.add(subject, reason, which_job(job, run), as_json))


@quarantine.command("clear")
def quarantine_clear(
    subject: Annotated[str, _SUBJECT],
    reason: Annotated[str, typer.Option("--reason", help="Why it may be used again; kept in the events.")],
    job: a.Job = None,
    run: a.RunId = None,
    check: Annotated[
        bool, typer.Option("--check", help="Only if its node, which looks at it now, finds it well.")
    ] = False,
    as_json: a.AsJson = False,
) -> int:
    """Take a device or a node of the running job out of quarantine.

    Exit code: 0 done, or with --check being looked at; 2 it is not in quarantine.

    Example: torchrelay quarantine clear n1 pretrain --reason "has a new fan" --check
    """
    from torchrelay.cli.jobs import quarantine as command

    return asyncio.run(command.clear(subject, reason, which_job(job, run), check, as_json))


spares = typer.Typer(name="spares", invoke_without_command=True)
jobs.add_typer(spares)


@spares.callback()
def spares_of_one(context: typer.Context, run: a.RunId = None, as_json: a.AsJson = False) -> int:
    """Show each spare of the running job, as `spares list` does. `spares add` makes more.

    Example: torchrelay spares --run pretrain
    """
    if context.invoked_subcommand is None:
        return spares_list(None, run, as_json)
    if run is not None or as_json:  # the command behind has its own, and would be about another job
        raise UserError(f"give options behind the command: torchrelay spares {context.invoked_subcommand} ...")
    return 0


@spares.command("list")
def spares_list(job: a.Job = None, run: a.RunId = None, as_json: a.AsJson = False) -> int:
    """Show each spare of the running job: its state, node and age, and why there are not more.

    Example: torchrelay spares list pretrain
    """
    from torchrelay.cli.jobs import spares as command

    return asyncio.run(command.show(which_job(job, run), as_json))


@spares.command("add")
def spares_add(
    count: Annotated[int, typer.Argument(metavar="N", min=1, help="How many more.")],
    job: a.Job = None,
    run: a.RunId = None,
    node: Annotated[
        str, typer.Option("--node", metavar="NODE", help="Where, as `status` names it. Default: where the fewest are.")
    ] = "",
    no_wait: a.NoWait = False,
    as_json: a.AsJson = False,
) -> int:
    """Have more spares in the running job from now on, and wait until they are ready.

    Each takes as much memory as a rank. On a machine with GPUs each needs one that is free.

    Exit code: 0 they are ready, 1 some will not be, 2 refused.

    Example: torchrelay spares add 1 pretrain
    """
    from torchrelay.cli.jobs import spares as command

    return asyncio.run(command.add(count, node, which_job(job, run), wait=not no_wait, as_json=as_json))
