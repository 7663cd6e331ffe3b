"""The commands about a job that runs: what it does, and what it is to do."""

from __future__ import annotations

import asyncio
from typing import Annotated

import typer

from torchrelay.cli.command_line import arguments as a

jobs = typer.Typer()


@jobs.command()
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


@jobs.command()
def top(wanted: a.RunId = None) -> int:
    """Watch the running jobs on this terminal: steps, goodput, ranks, spares, migrations, and what is left to do.

    q or Ctrl-C ends the view, and no job.

    Example: torchrelay top --run pretrain
    """
    from torchrelay.cli.jobs import top as command

    return asyncio.run(command.top(wanted))


@jobs.command()
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


@jobs.command()
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


@jobs.command()
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


@jobs.command()
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


@jobs.command()
def stop(
    wanted: a.RunId = None,
    no_wait: Annotated[bool, typer.Option("--no-wait", help="End as soon as the job is told to.")] = False,
) -> int:
    """End the running job on all its machines, as Ctrl-C at its command would.

    Example: torchrelay stop --run pretrain
    """
    from torchrelay.cli.jobs import stop as command

    return asyncio.run(command.stop(wanted, wait=not no_wait))


quarantine = typer.Typer(
    name="quarantine", help="List, add and clear what is given no rank: devices and nodes.", no_args_is_help=True
)
jobs.add_typer(quarantine)
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
jobs.add_typer(spares)


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
