"""`torchrelay events`: what has happened to a job, in words or as JSON."""

from __future__ import annotations

import os
import sys
import time
from contextlib import aclosing

from rich.text import Text

from torchrelay.cli.controller_client.reach import controller_of
from torchrelay.cli.display import narrate
from torchrelay.cli.display.summary import RunSummary, fold
from torchrelay.cli.display.teller import make_console
from torchrelay.cli.folders import folder
from torchrelay.dashboard.event_writer import json_line
from torchrelay.protocol.events import from_job_event


async def show_events(wanted: str | None, follow: bool, as_json: bool) -> int:
    """Print the job's events from its start, and with `follow` those to come until it ends. Raises UserError if there is none."""
    console, summary = make_console(sys.stdout), RunSummary()
    async with (
        controller_of(folder.state_folder(os.environ), wanted) as (_, control),
        aclosing(control.watch(without_progress=not as_json, follow=follow)) as stream,
    ):
        async for packed in stream:
            if as_json:
                print(json_line(packed), flush=True)
                continue
            event = from_job_event(packed)
            before, summary = summary, fold(summary, event, packed.time_s)
            at = time.strftime("%H:%M:%S ", time.localtime(packed.time_s))
            for text in narrate.notes(before, event, verbose=True):
                console.print(Text(at, style="dim") + text[len(narrate.PREFIX) :])
    return 0
