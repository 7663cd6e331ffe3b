"""`torchrelay events`: what has happened to a job, in words or as JSON."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Iterator
from contextlib import aclosing
from pathlib import Path

from rich.text import Text

from torchrelay.cli.controller_client.reach import controller_of
from torchrelay.cli.display import narrate
from torchrelay.cli.display.summary import RunSummary, fold
from torchrelay.cli.display.teller import make_console
from torchrelay.cli.folders import folder
from torchrelay.cli.folders.history import KeptRun, end_in_words
from torchrelay.cli.folders.meant_job import newest_that_is_over
from torchrelay.dashboard.event_writer import json_line
from torchrelay.protocol.errors import FrameError, UserError
from torchrelay.protocol.events import JobFinished, from_job_event
from torchrelay.protocol.messages import JobEvent


async def show_events(wanted: str | None, follow: bool, as_json: bool) -> int:
    """Print the job's events from its start, and with `follow` those to come until it ends.

    Of a job that is over they are those that are kept. Raises UserError if there is none.
    """
    state = folder.state_folder(os.environ)
    show = print_line if as_json else Narration().show
    if (over := _kept(state, wanted)) is not None:
        for packed in _read(over):
            show(packed)
        return 0
    async with (
        controller_of(state, wanted) as (_, control),
        aclosing(control.watch(without_progress=not as_json, follow=follow)) as stream,
    ):
        async for packed in stream:
            show(packed)
    return 0


def print_line(packed: JobEvent) -> None:
    print(json_line(packed), flush=True)


class Narration:
    """Tells events in words, each with its time."""

    def __init__(self) -> None:
        self._console = make_console(sys.stdout)
        self._summary = RunSummary()

    def show(self, packed: JobEvent) -> None:
        try:
            event = from_job_event(packed)
        except FrameError:  # of another version
            return
        before = self._summary
        self._summary = fold(before, event, packed.time_s)
        at = time.strftime("%H:%M:%S ", time.localtime(packed.time_s))
        texts = narrate.notes(before, event, verbose=True)
        if isinstance(event, JobFinished):  # its command tells it with the summary
            failed = event.exit_code != 0 and not event.by
            texts = [*texts, narrate.line(f"the job is over: {end_in_words(event)}", "red" if failed else "")]
        for text in texts:
            self._console.print(Text(at, style="dim") + text)


def _kept(state: Path, wanted: str | None) -> KeptRun | None:
    """Return the newest run that is meant and over, where none runs that is."""
    try:
        folder.choose_run(state, wanted)
    except folder.NotRunningError:
        return newest_that_is_over(wanted)
    return None


def _read(run: KeptRun) -> Iterator[JobEvent]:
    """Yield the events of a kept run. A line that was cut off is left out. Raises UserError if the file cannot be read."""
    try:
        with open(run.events, encoding="utf-8") as file:
            for line in file:
                try:
                    fields = json.loads(line)
                    event = JobEvent(float(fields.pop("time_s")), str(fields.pop("name")), json.dumps(fields))
                except (ValueError, TypeError, KeyError, AttributeError):
                    continue
                yield event
    except OSError as e:
        raise UserError(f"{run.events} cannot be read: {e.strerror}") from e
