"""`torchrelay quarantine`: devices and nodes that are given no rank."""

from __future__ import annotations

import os
import sys

from torchrelay.cli.controller_client.reach import controller_of
from torchrelay.cli.display import narrate
from torchrelay.cli.display.answers import (
    CHECKING,
    CLEARED,
    DONE,
    REFUSED,
    QuarantineAddJson,
    QuarantineClearJson,
    print_json,
)
from torchrelay.cli.display.teller import make_console
from torchrelay.cli.display.told_json import QuarantineJson, quarantined
from torchrelay.cli.folders import folder
from torchrelay.protocol.names import EXIT_USAGE


async def show(wanted: str | None, as_json: bool) -> int:
    """Print what is in quarantine, each with its reason. Raises UserError if there is no such job."""
    async with controller_of(folder.state_folder(os.environ), wanted) as (run, control):
        status = await control.status()
    if as_json:
        print_json(QuarantineJson(run.run_id, quarantined(status)))
        return 0
    console = make_console(sys.stdout)
    for text in status.quarantine or ("nothing is in quarantine",):
        console.print(text, markup=False)
    return 0


async def add(subject: str, reason: str, wanted: str | None, as_json: bool = False) -> int:
    """Return 0, or 2 if it is refused. Raises UserError if there is no such job."""
    async with controller_of(folder.state_folder(os.environ), wanted) as (run, control):
        reply = await control.quarantine(subject, reason)
    console = make_console(sys.stderr)
    console.print(narrate.line(reply.message, "" if reply.accepted else "red"))
    if not reply.accepted:
        console.print(narrate.hint(f"torchrelay status --run {run.run_id}"))
    if as_json:
        outcome = DONE if reply.accepted else REFUSED
        print_json(QuarantineAddJson(run.run_id, subject, outcome, reply.message, reply.ranks, reply.staying))
    return 0 if reply.accepted else EXIT_USAGE


async def clear(subject: str, reason: str, wanted: str | None, check: bool = False, as_json: bool = False) -> int:
    """Return 0, or 2 if it is not in quarantine; with `check` 0 once its node looks. Raises UserError if there is no such job."""
    async with controller_of(folder.state_folder(os.environ), wanted) as (run, control):
        reply = await control.clear(subject, reason, check)
    done = reply.cleared or reply.checking
    console = make_console(sys.stderr)
    console.print(narrate.line(reply.message, "" if done else "red"))
    if not done:
        console.print(narrate.hint(f"torchrelay quarantine list --run {run.run_id}"))
    if as_json:
        outcome = CLEARED if reply.cleared else CHECKING if reply.checking else REFUSED
        print_json(QuarantineClearJson(run.run_id, subject, outcome, reply.message))
    return 0 if done else EXIT_USAGE
