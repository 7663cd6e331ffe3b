"""`torchrelay clear`: takes a device or a node out of quarantine."""

from __future__ import annotations

import os
import sys

from torchrelay.cli import folder, narrate
from torchrelay.cli.control import Control
from torchrelay.cli.teller import make_console
from torchrelay.protocol.names import EXIT_USAGE


async def clear(subject: str, reason: str, run_id: str | None, check: bool = False) -> int:
    """0, or 2 if it is not in quarantine; with `check` 0 once it is being looked at. Raises UserError if there is no such job."""
    state = folder.state_folder(os.environ)
    run = folder.choose_run(state, run_id)
    async with Control(run.controller_host, run.controller_port, folder.read_secret(state / run.folder)) as control:
        reply = await control.clear(subject, reason, check)
    done = reply.cleared or reply.checking
    make_console(sys.stderr).print(narrate.line(reply.message, "" if done else "red"))
    return 0 if done else EXIT_USAGE
