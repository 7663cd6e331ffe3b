"""`torchrelay stop`: ends a job as Ctrl-C at its command would."""

from __future__ import annotations

import os
import signal
import sys
from contextlib import aclosing

from torchrelay.cli.controller_client.reach import controller_of
from torchrelay.cli.display import narrate
from torchrelay.cli.display.answers import ENDED, TOLD, StopJson, print_json
from torchrelay.cli.display.teller import make_console
from torchrelay.cli.folders import folder
from torchrelay.protocol.errors import ChannelClosedError
from torchrelay.protocol.events import JobFinished, from_job_event


async def stop(wanted: str | None, wait: bool, as_json: bool = False) -> int:
    """Return 0 once the job has ended; without `wait` once it is told to. Raises UserError if there is no such job."""
    console = make_console(sys.stderr)
    async with controller_of(folder.state_folder(os.environ), wanted) as (run, control):
        await control.stop(signal.SIGTERM)
        if wait:
            try:
                async with aclosing(control.watch(without_progress=True)) as stream:
                    async for packed in stream:
                        if isinstance(from_job_event(packed), JobFinished):
                            break
            except ChannelClosedError:
                pass  # it has ended
        name = f"{run.run_id} ({run.name})" if run.name else run.run_id
        ended = "has ended" if wait else "ends: its ranks have been sent SIGTERM"
        console.print(narrate.line(f"job {name} {ended}"))
        if as_json:
            print_json(StopJson(run.run_id, ENDED if wait else TOLD))
    return 0
