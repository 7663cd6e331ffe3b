"""The folder of one run: what it was, and its events."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from torchrelay.cli.folders.folder import Process, write_private
from torchrelay.dashboard.event_writer import EventWriter
from torchrelay.protocol.messages import JobEvent

HEAD_FILE = "run.json"
EVENTS_FILE = "events.jsonl"


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
    """Writes the events of one run. What cannot be written costs the history, and never the run: `say` is told once."""

    def __init__(self, history: Path, head: RunHead, say: Callable[[str], None]) -> None:
        self._say = say
        self._events: EventWriter | None = None
        folder = history / head.folder_name
        try:
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            write_private(folder / HEAD_FILE, json.dumps(asdict(head), indent=1).encode())
        except OSError as e:
            self._fail(e)
        else:
            self._events = EventWriter(folder / EVENTS_FILE, self._fail)

    def take(self, event: JobEvent) -> None:
        if self._events is not None:
            self._events.take(event)

    def close(self) -> None:
        if self._events is not None:
            self._events.close()

    def _fail(self, error: OSError) -> None:
        self._say(f"the history of this run ends here ({error}); the run goes on")
