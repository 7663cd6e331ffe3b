"""Which spares of a machine give way to training, and for how long: their imports would take the processors from the ranks'."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from torchrelay.agent.processes.priority import Priorities
from torchrelay.protocol.messages import WorkerProgress
from torchrelay.protocol.names import NO_RANK, WorkerId


class GivingWay:
    """Lowers the priority of spares, and raises it again once they are needed."""

    def __init__(self, priorities: Priorities) -> None:
        self._priorities = priorities
        self._idle: dict[WorkerId, int] = {}
        """Spares that give way, with their processes."""
        self._first: set[WorkerId] = set()
        """Those of them that the job began with."""

    def until_needed(self, worker: WorkerId, pid: int) -> None:
        self._priorities.lower(pid)
        self._idle[worker] = pid

    def until_first_step(self, worker: WorkerId, pid: int) -> None:
        """Let a spare that starts together with the ranks import after them; it is ready soon after their first step."""
        self.until_needed(worker, pid)
        self._first.add(worker)

    def saw(
        self,
        seen: Sequence[WorkerProgress],
        ranks: Mapping[WorkerId, int],
        pid_of: Callable[[WorkerId], int | None],
    ) -> None:
        """Raise the first spares once each process that has a rank here has done a step. `pid_of`: as for `is_needed`."""
        if self._first and all(p.boundary >= 1 for p in seen if ranks[WorkerId(p.worker)] != NO_RANK):
            for worker in sorted(self._first):
                self.is_needed(worker, pid_of(worker))

    def is_needed(self, worker: WorkerId, pid: int | None) -> None:
        """From now on it runs as any other. `pid`: what it says that it is, where a wrapper has started it."""
        started = self._idle.get(worker)
        self.ended(worker)
        if started is not None:
            self._priorities.raise_(started, pid or started)

    def ended(self, worker: WorkerId) -> None:
        self._idle.pop(worker, None)
        self._first.discard(worker)
