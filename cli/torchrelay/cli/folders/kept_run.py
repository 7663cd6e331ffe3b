"""The folder of one run: what it was, and its events, written as they come and bounded in size."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, TextIO

from torchrelay.cli.folders.folder import Process, write_private
from torchrelay.protocol.events import NAMES, JobFinished, MigrationProgressed, ProgressMade, ReportMade
from torchrelay.protocol.messages import JobEvent

HEAD_FILE, EVENTS_FILE = "run.json", "events.jsonl"
MOST_BYTES = 16 << 20
"""Of one run's events. Beyond it only the run's end is written."""
PROGRESS_S, PROGRESS_KEPT = 1.0, 2000
"""Progress is kept so often at first; half as often after each so many lines."""
_PROGRESS, _REPORT, _END = NAMES[ProgressMade], NAMES[ReportMade], NAMES[JobFinished]
_PASSING = NAMES[MigrationProgressed]
"""Of no use to anybody once it is over."""


@dataclass(frozen=True)
class RunHead:
    """What a run was. `machine`: the name of its folder among those of the running jobs; `process`: of its command."""

    run_id: str
    name: str
    machine: str
    working_folder: str
    command: tuple[str, ...]
    started_s: float
    process: Process | None

    @property
    def is_running(self) -> bool:
        return self.process is not None and self.process.is_running()

    @property
    def folder_name(self) -> str:
        """Return the folder's name, by which runs sort by time."""
        return time.strftime("%Y%m%d-%H%M%S", time.gmtime(self.started_s)) + f"-{self.machine}"


def read_head(folder: Path) -> RunHead | None:
    """Read what a run was; None if there is no whole file."""
    try:
        data: dict[str, Any] = json.loads((folder / HEAD_FILE).read_bytes())
        process = data.pop("process")
        own = Process(int(process["pid"]), float(process["started_s"])) if process else None
        return RunHead(**{**data, "command": tuple(data["command"]), "process": own})
    except (OSError, ValueError, KeyError, TypeError):
        return None


class RunWriter:
    """Writes the events of one run. What cannot be written costs the history, and never the run: `say` is told once.

    `as_line`: an event as one line of JSON.
    """

    def __init__(
        self, history: Path, head: RunHead, as_line: Callable[[JobEvent], str], say: Callable[[str], None]
    ) -> None:
        self._as_line, self._say = as_line, say
        self._file: TextIO | None = None
        self._size_bytes, self._progress, self._progress_s, self._reports = 0, 0, float("-inf"), 0
        self._left_out: JobEvent | None = None
        """Progress that is newer than what was kept of it: what comes after it would be counted wrongly without it."""
        try:
            folder = history / head.folder_name
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            write_private(folder / HEAD_FILE, json.dumps(asdict(head), indent=1).encode())
            self._file = open(folder / EVENTS_FILE, "a", encoding="utf-8")  # noqa: SIM115 - closed with the run
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
        line = self._as_line(event) + "\n"
        if self._size_bytes + len(line) > MOST_BYTES and event.name != _END:
            return
        self._size_bytes += len(line)
        try:
            self._file.write(line)
            self._file.flush()
        except OSError as e:
            self._fail(e)

    def close(self) -> None:
        if self._file is not None:
            file, self._file = self._file, None
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
        self._progress, self._progress_s = self._progress + 1, event.time_s
        return True

    def _fail(self, error: OSError) -> None:
        self._file = None
        self._say(f"the history of this run ends here ({error}); the run goes on")
