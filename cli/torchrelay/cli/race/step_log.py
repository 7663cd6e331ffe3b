"""What the recorder writes of each rank: when its steps were done, and what its weights were at the end."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

PARAMETERS = "parameters"


@dataclass(frozen=True)
class Step:
    """One step. `number`: as the optimizer counts; None if it does not. `unix_s`: when it was done, seconds since the epoch."""

    process: int
    number: int | None
    unix_s: float


@dataclass
class RankLog:
    """The steps of one rank, over all processes that held it. `end`: digest of the weights when the script ended, empty before."""

    steps: list[Step] = field(default_factory=list)
    end: str = ""


class StepLogs:
    """One log for each rank, read on as they are written."""

    def __init__(self, paths: Sequence[Path]) -> None:
        self.logs = [RankLog() for _ in paths]
        self._paths = paths
        self._read_bytes = [0] * len(paths)

    def read(self) -> None:
        """Read what is new. A line that is not whole is left for the next time."""
        for rank, path in enumerate(self._paths):
            try:
                with open(path, "rb") as file:
                    file.seek(self._read_bytes[rank])
                    data = file.read()
            except FileNotFoundError:
                continue
            whole = data[: data.rfind(b"\n") + 1]
            self._read_bytes[rank] += len(whole)
            for line in whole.splitlines():
                _take(self.logs[rank], line)


def _take(log: RankLog, line: bytes) -> None:
    record = json.loads(line)
    if "unix_s" in record:
        log.steps.append(Step(record["process"], record["number"], record["unix_s"]))
        log.end = ""
    elif "end" in record:
        log.end = record["end"].get(PARAMETERS, "")
