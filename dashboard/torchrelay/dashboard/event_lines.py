"""A file of `torchrelay run --events`, read into a record, also while it grows."""

from __future__ import annotations

import json
from pathlib import Path

from torchrelay.dashboard.record import RunRecord
from torchrelay.protocol.errors import FrameError, UserError
from torchrelay.protocol.events import from_fields

AT_ONCE_BYTES = 128 << 10
_UNUSED = {"rank_report"}
"""What each rank says of itself: what it comes to is in `coverage`, and a large job says it very often."""


class EventLines:
    """Reads events from a file into `record`."""

    def __init__(self, path: Path, record: RunRecord | None = None) -> None:
        self.path = path
        self.record = RunRecord() if record is None else record
        self._offset = 0
        self._rest = b""
        self._has_events = False
        self._strange = b""

    def read_more(self) -> bool:
        """Read some of what is new. Return whether anything was new. A line that is not whole yet is read the next time.

        A line that was cut off is left out. Raises UserError if the file cannot be read, or holds no events.
        """
        try:
            with open(self.path, "rb") as file:
                file.seek(self._offset)
                data = file.read(AT_ONCE_BYTES)
        except OSError as e:
            raise UserError(f"{self.path} cannot be read: {e.strerror}") from e
        self._offset += len(data)
        lines = (self._rest + data).split(b"\n")
        self._rest = lines.pop()
        for line in lines:
            self._take(line)
        if (line := self._strange) and not self._has_events:
            raise UserError(f"{self.path} is not a file of `torchrelay run --events`: {line!r}")
        return bool(data)

    def read_all(self) -> RunRecord:
        """Read the file as far as it is written. Raises UserError."""
        while self.read_more():
            pass
        return self.record

    def _take(self, line: bytes) -> None:
        if not line.strip():
            return
        try:
            fields = json.loads(line)
            name = fields.pop("name")
            time_s = float(fields.pop("time_s"))
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
            self._strange = self._strange or line[:80]
            return
        self._has_events = True
        if name in _UNUSED and self.record.first_step_s is not None:
            return
        try:
            self.record.take(from_fields(name, fields), time_s)
        except FrameError:  # of another version
            return
