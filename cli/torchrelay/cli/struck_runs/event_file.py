"""The file that `torchrelay run --events` writes, read while it grows."""

from __future__ import annotations

import json
from pathlib import Path

from torchrelay.cli.display.summary import RunSummary, fold
from torchrelay.protocol.errors import FrameError
from torchrelay.protocol.events import Occurrence, from_job_event
from torchrelay.protocol.messages import JobEvent


class EventFile:
    """A file of events. `occurrences`: all that was read so far, except progress; `summary`: what they come to."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.summary = RunSummary()
        self.occurrences: list[Occurrence] = []
        self._offset = 0

    def read(self) -> list[Occurrence]:
        """Read what is new. A line that is not whole yet comes the next time."""
        if not self.path.exists():
            return []
        with open(self.path, "rb") as file:
            file.seek(self._offset)
            data = file.read()
        whole = data[: data.rfind(b"\n") + 1]
        self._offset += len(whole)
        return [o for line in whole.splitlines() if (o := self._take(json.loads(line))) is not None]

    def _take(self, record: dict[str, object]) -> Occurrence | None:
        name = str(record.pop("name"))
        time_s = float(str(record.pop("time_s")))
        try:
            occurrence = from_job_event(JobEvent(time_s, name, json.dumps(record)))
        except FrameError:  # of another version: it is in the file, for whoever looks there
            return None
        self.summary = fold(self.summary, occurrence, time_s)
        if name != "progress":
            self.occurrences.append(occurrence)
        return occurrence
