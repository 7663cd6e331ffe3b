"""Follows the events of a job: into the summary, onto the terminal, into the file of --events."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from contextlib import aclosing
from pathlib import Path
from types import TracebackType
from typing import TextIO

from torchrelay.cli.controller_client.control import Control
from torchrelay.cli.display import narrate
from torchrelay.cli.display.summary import RunSummary, fold
from torchrelay.cli.display.teller import Teller
from torchrelay.cli.folders.kept_run import RunWriter
from torchrelay.dashboard.event_writer import json_line
from torchrelay.protocol.errors import ChannelClosedError, FatalError, FrameError
from torchrelay.protocol.events import JobFinished, Occurrence, from_job_event, to_job_event
from torchrelay.protocol.messages import JobEvent

AGAIN_S = 0.2


class JobFollower:
    """Follows a job. `summary`: what has been heard so far.

    `kept`: writes it into the history. `notify`: told the summary before and after each event, and the event.
    """

    def __init__(
        self,
        teller: Teller,
        events_file: Path | None,
        kept: RunWriter | None = None,
        notify: Callable[[RunSummary, RunSummary, Occurrence], None] = lambda before, now, event: None,
    ) -> None:
        self._teller = teller
        self._path = events_file
        self._kept = kept
        self._notify = notify
        self._file: TextIO | None = None
        self._newest_s = 0.0
        self.summary = RunSummary(is_kept=kept is not None)
        self.heard: Callable[[RunSummary, RunSummary], None] = lambda before, now: None
        """Told the summary before and after each event."""

    def __enter__(self) -> JobFollower:
        if self._path is not None:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            self._file = open(self._path, "w", encoding="utf-8")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._file is not None:
            self._file.close()
        if self._kept is not None:
            self._kept.close()

    async def follow(self, control: Control) -> None:
        """Follow the job until its last event.

        A controller that is gone may come back, or another one may answer at its address.
        """
        self._newest_s = 0.0  # another machine's clock says nothing of what this controller has told
        while True:
            if await self._follow_one(control):
                return
            await asyncio.sleep(AGAIN_S)

    async def _follow_one(self, control: Control) -> bool:
        """Follow one stream of events. Return whether nothing more is to come."""
        nobody_looks = self._file is None and self._kept is None and not self._teller.is_live
        known_s = self._newest_s
        async with aclosing(control.watch(without_progress=nobody_looks)) as events:
            try:
                async for event in events:
                    if event.time_s <= known_s:
                        continue  # a stream begins with all that its controller has ever told
                    self._newest_s = event.time_s
                    self.take(event)
                    if self.summary.exit_code is not None:
                        return True
            except ChannelClosedError:
                return False
            except FatalError as e:
                self._teller.say([narrate.line(f"{e}; what happens from here on is not told", "red")])
                return True
        return False

    def ended(self, exit_code: int, reason: str) -> None:
        """Write down how the job ended, as its command knows, where no controller has said so."""
        if self.summary.exit_code is None:
            self._write(to_job_event(JobFinished(exit_code, reason), time.time()))

    def _write(self, event: JobEvent) -> None:
        if self._file is not None:
            self._file.write(json_line(event) + "\n")
            self._file.flush()
        if self._kept is not None:
            self._kept.take(event)

    def take(self, event: JobEvent) -> None:
        self._write(event)
        try:
            occurrence = from_job_event(event)
        except FrameError:  # of a newer controller: it is in the file, and means nothing to this version
            return
        before = self.summary
        self.summary = fold(self.summary, occurrence, event.time_s)
        self._teller.event(before, self.summary, occurrence)
        self._notify(before, self.summary, occurrence)
        self.heard(before, self.summary)
