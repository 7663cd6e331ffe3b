"""`torchrelay spares`: which spares a running job has, and more of them."""

from __future__ import annotations

import dataclasses
import json
import os
import sys
from collections.abc import Callable
from contextlib import aclosing

from rich.console import Console

from torchrelay.cli.controller_client.control import Control
from torchrelay.cli.controller_client.reach import controller_of
from torchrelay.cli.display import narrate, render
from torchrelay.cli.display.answers import ACCEPTED, NOT_READY, READY, REFUSED, SparesAddJson, print_json
from torchrelay.cli.display.teller import make_console
from torchrelay.cli.display.told_json import spares_of
from torchrelay.cli.display.waiting import waiting
from torchrelay.cli.folders import folder
from torchrelay.protocol import events
from torchrelay.protocol.events import from_job_event
from torchrelay.protocol.messages import JobStatus
from torchrelay.protocol.names import EXIT_USAGE

EXIT_NOT_READY = 1
OVER = "the job has ended before they were ready"
_EXIT_CODES = {READY: 0, ACCEPTED: 0, NOT_READY: EXIT_NOT_READY, REFUSED: EXIT_USAGE}


async def show(wanted: str | None, as_json: bool) -> int:
    """Print each spare, and why there are not more. Raises UserError if there is no such job."""
    async with controller_of(folder.state_folder(os.environ), wanted) as (_, control):
        status = await control.status()
    if as_json:
        print(json.dumps({"run_id": status.run_id, **dataclasses.asdict(spares_of(status))}))
    else:
        make_console(sys.stdout).print(render.spares_view(status))
    return 0


async def add(count: int, node: str, wanted: str | None, wait: bool, as_json: bool = False) -> int:
    """Return 0 once as many are ready, 1 if they will not be, 2 if it is refused. Raises UserError if there is no such job."""
    console = make_console(sys.stderr)
    async with controller_of(folder.state_folder(os.environ), wanted) as (run, control):
        told = await _add(console, control, run.run_id, count, node, wait)
    if as_json:
        print_json(told)
    return _EXIT_CODES[told.outcome]


async def _add(console: Console, control: Control, run_id: str, count: int, node: str, wait: bool) -> SparesAddJson:
    known = {spare.worker for spare in (await control.status()).spares}
    reply = await control.add_spares(count, node)
    if not reply.accepted:
        console.print(narrate.line(f"no spare is added: {reply.message}", "red"))
        console.print(narrate.hint(f"torchrelay spares --run {run_id}"))
        return SparesAddJson(run_id, count, REFUSED, reply.message, ())
    spares = render.count(count, "spare")
    console.print(narrate.line(f"{spares} more: there are to be {reply.wanted} from now on ({reply.message})"))
    if not wait:
        return SparesAddJson(run_id, count, ACCEPTED, reply.message, ())
    ready: list[str] = []
    with waiting(console, "spares", count) as are_ready:
        why_not = await _until_ready(console, control, count, known, ready, are_ready)
    if not why_not:
        return SparesAddJson(run_id, count, READY, reply.message, tuple(ready))
    console.print(narrate.line(why_not, "red"))
    if why_not != OVER:
        console.print(narrate.hint(f"torchrelay spares --run {run_id}"))
    return SparesAddJson(run_id, count, NOT_READY, why_not, tuple(ready))


async def _until_ready(
    console: Console,
    control: Control,
    count: int,
    known: set[str],
    ready: list[str],
    are_ready: Callable[[int], None],
) -> str:
    """Return why fewer than `count` will be ready, empty if all are. Looks again after each event that may change how many.

    `known`: those that were there before. The new ones that can take over are put into `ready`.
    """
    async with aclosing(control.watch(without_progress=True)) as stream:
        async for packed in stream:
            match from_job_event(packed):
                case events.JobFinished():
                    return OVER
                case events.SpareDropped() as dropped if dropped.worker not in known:
                    console.print(narrate.line(f"spare {dropped.worker} is of no use: {dropped.reason}", "yellow"))
                case events.SparesChanged():
                    pass
                case _:
                    continue
            status = await control.status()
            _tell_ready(console, status, count, known, ready)
            are_ready(len(ready))
            if len(ready) >= count:
                return ""
            if not status.spares_making and status.spares_warm >= status.spares_wanted:
                break
    return f"{len(ready)} of {count} are ready, and no more are on their way"


def _tell_ready(console: Console, status: JobStatus, count: int, known: set[str], ready: list[str]) -> None:
    for spare in status.spares:
        if spare.state == "ready" and spare.worker not in known and spare.worker not in ready:
            ready.append(spare.worker)
            console.print(narrate.line(f"spare {spare.worker} on {spare.node} is ready ({len(ready)} of {count})"))
