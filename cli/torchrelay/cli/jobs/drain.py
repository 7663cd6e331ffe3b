"""`torchrelay drain`: moves every rank away from a node, and says when nothing of the job runs there."""

from __future__ import annotations

import asyncio
import os
import sys
from contextlib import aclosing
from dataclasses import dataclass

from rich.console import Console

from torchrelay.cli.controller_client.control import Control
from torchrelay.cli.controller_client.reach import controller_of
from torchrelay.cli.display import narrate
from torchrelay.cli.display.answers import FREE, NOT_FREE, REFUSED, DrainJson, RanksLeft, print_json
from torchrelay.cli.display.render import count, listed
from torchrelay.cli.display.summary import RunSummary, fold
from torchrelay.cli.display.teller import make_console
from torchrelay.cli.folders import folder
from torchrelay.protocol import events
from torchrelay.protocol.events import from_job_event
from torchrelay.protocol.messages import JobStatus
from torchrelay.protocol.names import EXIT_USAGE

EXIT_NOT_FREE = 1


@dataclass(frozen=True)
class DrainProgress:
    """Which ranks are still on the node, and why they are, in words."""

    ranks: tuple[int, ...]
    reason: str = ""


def still_there(status: JobStatus, subject: str, reason: str = "") -> DrainProgress:
    """Return which ranks have not left `subject`. A rank whose script is over needs it no more."""
    ranks = tuple(r.rank for r in status.ranks if r.node == subject and r.state != "finished")
    if ranks and not reason and status.spares_warm == 0:
        reason = status.spares_reason or "no spare is ready"
    return DrainProgress(ranks, reason)


async def drain(node: str, reason: str, wanted: str | None, timeout_s: float | None, as_json: bool = False) -> int:
    """Return 0 once the node is free, 1 if it is not, 2 if it is refused. Raises UserError if there is no such job."""
    console = make_console(sys.stderr)

    def answer(outcome: str, why: str, run_id: str, ranks: tuple[int, ...] = ()) -> None:
        if as_json:
            print_json(DrainJson(node, outcome, why, (RanksLeft(run_id, ranks),) if ranks else ()))

    async with controller_of(folder.state_folder(os.environ), wanted) as (run, control):
        status = await control.status()
        nodes = sorted({r.node for r in status.ranks})
        known_s = await _newest_s(control)
        reply = await control.quarantine(node, reason)
        if not reply.accepted:
            console.print(narrate.line(f"{node} is not drained: {reply.message}", "red"))
            known = node in {*nodes, *(spare.node for spare in status.spares)}
            console.print(narrate.hint(f"torchrelay {'checkpoint' if known else 'status'} --run {run.run_id}"))
            answer(REFUSED, reply.message, run.run_id)
            return EXIT_USAGE
        if node not in nodes:
            why = f"no rank runs there (ranks run on {listed(nodes)})"
            console.print(narrate.line(f"{node} is free: {why}"))
            answer(FREE, why, run.run_id)
            return 0
        console.print(narrate.line(reply.message, "red" if reply.staying else ""))
        if reply.staying:  # nothing that comes later would move them
            answer(NOT_FREE, reply.message, run.run_id, reply.staying)
            return EXIT_NOT_FREE
        try:
            left = await asyncio.wait_for(_until_free(console, control, node, known_s), timeout_s)
        except asyncio.TimeoutError:
            left = still_there(await control.status(), node)
    answer(NOT_FREE if left.ranks else FREE, left.reason, run.run_id, left.ranks)
    return _report(console, node, run.run_id, left)


async def _newest_s(control: Control) -> float:
    """Return when the job has told its newest event; below 0 if it has told none."""
    newest_s = -1.0
    async with aclosing(control.watch(without_progress=True, follow=False)) as stream:
        async for packed in stream:
            newest_s = max(newest_s, packed.time_s)
    return newest_s


async def _until_free(console: Console, control: Control, node: str, known_s: float) -> DrainProgress:
    """Return once no rank is there, or when the job is over. Looks again after each event that may have moved one.

    `known_s`: what was told until then is no news.
    """
    summary = RunSummary()
    why = ""
    async with aclosing(control.watch(without_progress=True)) as stream:
        async for packed in stream:
            event = from_job_event(packed)
            before = summary
            summary = fold(summary, event, packed.time_s)
            if packed.time_s <= known_s:
                continue
            match event:
                case events.HealthVerdict() if event.node == node and event.outcome in ("refused", "observed"):
                    why = event.reason
                case events.MoveNotMade():
                    why = event.reason
                case events.MigrationStarted() | events.MigrationFinished():
                    why = ""
                case events.JobFinished():
                    return DrainProgress(())
                case events.MigrationProgressed():
                    for text in narrate.notes(before, event):
                        console.print(text)
                    continue
                case _:
                    continue
            left = still_there(await control.status(), node, why)
            if not left.ranks:
                return left
            for text in narrate.notes(before, event):
                console.print(text)
    return still_there(await control.status(), node, why)


def _report(console: Console, node: str, run_id: str, left: DrainProgress) -> int:
    if not left.ranks:
        console.print(narrate.line(f"{node} is free: nothing of job {run_id} needs it any more", "green"))
        return 0
    why = f": {left.reason}" if left.reason else ""
    console.print(narrate.line(f"{node} is not free: {count(len(left.ranks), 'rank')} still there{why}", "red"))
    console.print(narrate.line("ranks move as soon as there is a spare for them; to keep them there:"))
    console.print(narrate.hint(f"torchrelay quarantine clear {node} --reason kept --run {run_id}"))
    return EXIT_NOT_FREE
