"""`torchrelay quarantine`: devices and nodes that are given no rank."""

from __future__ import annotations

import json
import os
import sys

from torchrelay.cli import folder, narrate
from torchrelay.cli.jobs.reach import controller_of
from torchrelay.cli.teller import make_console
from torchrelay.protocol.names import EXIT_USAGE


async def show(wanted: str | None, as_json: bool) -> int:
    """Prints what is in quarantine, each with its reason. Raises UserError if there is no such job."""
    async with controller_of(folder.state_folder(os.environ), wanted) as (_, control):
        kept = (await control.status()).quarantine
    if as_json:
        print(json.dumps({"quarantine": list(kept)}))
        return 0
    console = make_console(sys.stdout)
    for text in kept or ("nothing is in quarantine",):
        console.print(text, markup=False)
    return 0


async def add(subject: str, reason: str, wanted: str | None) -> int:
    """Return 0, or 2 if it is refused. Raises UserError if there is no such job."""
    async with controller_of(folder.state_folder(os.environ), wanted) as (_, control):
        reply = await control.quarantine(subject, reason)
    make_console(sys.stderr).print(narrate.line(reply.message, "" if reply.accepted else "red"))
    return 0 if reply.accepted else EXIT_USAGE


async def clear(subject: str, reason: str, wanted: str | None, check: bool = False) -> int:
    """Return 0, or 2 if it is not in quarantine; with `check` 0 once its node looks. Raises UserError if there is no such job."""
    async with controller_of(folder.state_folder(os.environ), wanted) as (_, control):
        reply = await control.clear(subject, reason, check)
    done = reply.cleared or reply.checking
    make_console(sys.stderr).print(narrate.line(reply.message, "" if done else "red"))
    return 0 if done else EXIT_USAGE
