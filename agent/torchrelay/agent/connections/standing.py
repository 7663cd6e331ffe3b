"""The facts about one process that a controller which is new to a training job has to be told."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from torchrelay.protocol.messages import Assign, Commit, FromWorker, Protect, WorkerExited, WorkerInfo
from torchrelay.protocol.transport.last_reports import LastReports


@dataclass
class AgentStanding:
    """The facts about one process. `generation`, `protected`, `in_force`, `gate_secret`: as in WorkerInfo.

    `said`: what the process has said of itself; `exited`: how it ended.
    """

    generation: int = 0
    in_force: int = -1
    protected: bool = False
    gate_secret: bytes = field(default=b"", repr=False)
    said: LastReports = field(default_factory=LastReports)
    exited: WorkerExited | None = None

    def ordered(self, order: Any) -> None:
        """Take note of an order of the controller that goes to the process."""
        self.generation = max(self.generation, getattr(order, "generation", 0))
        if isinstance(order, Assign):
            self.protected = True
        elif isinstance(order, Commit):
            self.in_force = order.generation
        elif isinstance(order, Protect):
            self.protected = order.on
            self.gate_secret = order.gate_secret

    def info(self, worker: str, rank: int, pid: int, launch: Mapping[str, str] | None = None) -> WorkerInfo:
        """Return what a stream's first message says of the process."""
        return WorkerInfo(
            worker, rank, pid, dict(launch or {}), self.generation, self.protected, self.in_force, self.gate_secret
        )

    def again(self, worker: str) -> list[Any]:
        """Return the messages that tell of the process, in the order in which they were sent at first."""
        told: list[Any] = [FromWorker(worker, report) for report in self.said.all()]
        return told + ([self.exited] if self.exited is not None else [])
