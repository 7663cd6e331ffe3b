"""The events of one run, written as they come and bounded in size, to be read by `event_lines`."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import TextIO

from torchrelay.protocol.events import NAMES, JobFinished, MigrationProgressed, ProgressMade, ReportMade
from torchrelay.protocol.messages import JobEvent

MOST_BYTES = 16 << 20
"""Of one run's events. Beyond it only the run's end is written."""
PROGRESS_S = 1.0
PROGRESS_KEPT = 2000
"""Progress is kept so often at first; half as often after each so many lines."""
_PROGRESS = NAMES[ProgressMade]
_REPORT = NAMES[ReportMade]
_END = NAMES[JobFinished]
_PASSING = NAMES[MigrationProgressed]
"""Of no use to anybody once it is over."""


def json_line(event: JobEvent) -> str:
    """Return the event as a line of --events, without the line's end."""
    return json.dumps({"time_s": event.time_s, "name": event.name, **json.loads(event.fields_json)})


class EventWriter:
    """Writes events into a file. A failed write costs the history, and never the run: `failed` is told once."""

    def __init__(self, path: Path, failed: Callable[[OSError], None], most_bytes: int | None = None) -> None:
        self._failed = failed
        self._most_bytes = MOST_BYTES if most_bytes is None else most_bytes
        self._file: TextIO | None = None
        self._size_bytes = 0
        self._progress = 0
        self._progress_s = float("-inf")
        self._reports = 0
        self._left_out: JobEvent | None = None
        """Progress that is newer than what was kept of it: what comes after it would be counted wrongly without it."""
        try:
            self._file = open(path, "a", encoding="utf-8")  # noqa: SIM115 - closed with the run
            self._size_bytes = self._file.tell()
            if self._size_bytes and not _ends_a_line(path):
                self._put("\n")
        except OSError as e:
            self._fail(e)

    def take(self, event: JobEvent) -> None:
        if self._file is None or not self._is_kept(event):
            return
        if (progress := self._left_out) is not None:
            self._left_out = None
            self._write(progress)
        self._write(event)

    def _write(self, event: JobEvent) -> None:
        if self._file is None:
            return
        line = json_line(event) + "\n"
        if self._size_bytes + len(line) > self._most_bytes and event.name != _END:
            return
        try:
            self._put(line)
        except OSError as e:
            self._fail(e)

    def _put(self, text: str) -> None:
        assert self._file is not None
        self._size_bytes += len(text)
        self._file.write(text)
        self._file.flush()

    def close(self) -> None:
        if self._file is not None:
            file = self._file
            self._file = None
            try:
                file.close()
            except OSError as e:
                self._fail(e)

    def _is_kept(self, event: JobEvent) -> bool:
        """Return whether the event is kept.

        Of the reports of ranks only the first is, as the sign that steps begin: the job's own report has the rest. Progress is kept
        more and more seldom.
        """
        if event.name == _REPORT:
            self._reports += 1
            return self._reports == 1
        if event.name != _PROGRESS:
            return event.name != _PASSING
        every_s = PROGRESS_S * 2 ** (self._progress // PROGRESS_KEPT)
        if event.time_s - self._progress_s < every_s:
            self._left_out = event
            return False
        self._left_out = None
        self._progress = self._progress + 1
        self._progress_s = event.time_s
        return True

    def _fail(self, error: OSError) -> None:
        self._file = None
        self._failed(error)


def _ends_a_line(path: Path) -> bool:
    """Return whether the last line is whole. It is not if a full volume, or the writer's end, has cut it off."""
    with open(path, "rb") as file:
        file.seek(-1, os.SEEK_END)
        return file.read(1) == b"\n"
