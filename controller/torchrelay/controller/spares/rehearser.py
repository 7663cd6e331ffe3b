"""The process that is started to rehearse where no spare is: it is given no rank, and ends when nothing is left to rehearse."""

from __future__ import annotations

from torchrelay.controller.outbox import Outbox
from torchrelay.controller.picture.job import Job
from torchrelay.controller.picture.worker import Worker
from torchrelay.protocol.messages import Fence, RehearserStarted, StartRehearser, WorkerExited
from torchrelay.protocol.names import NO_RANK


class Rehearser:
    """The process: at most one at a time."""

    def __init__(self, job: Job, outbox: Outbox) -> None:
        self._job = job
        self._outbox = outbox
        self.worker = ""
        self._awaited = 0
        """How many were asked for, and have not come: the last one counts."""

    @property
    def is_ready(self) -> bool:
        return (known := self._known) is not None and known.warm and known.alive

    @property
    def unusable(self) -> str:
        """Why the process cannot rehearse; empty if it can."""
        known = self._known
        if known is None:
            return ""
        return known.disabled or ("" if known.alive else "its machine was lost")

    def is_worker(self, worker: str) -> bool:
        return worker == self.worker

    def ready_beside(self, holder: str) -> str:
        """Return the process, if it is on the machine of `holder` and can begin at once; else empty."""
        known = self._known
        there = known is not None and known.node == self._job.workers[holder].node
        return self.worker if there and self.is_ready and not self.unusable else ""

    def start(self, beside: str) -> None:
        self.end()
        self._awaited += 1
        self._outbox.to_agent_of(beside, StartRehearser(beside))

    def started(self, node: str, message: RehearserStarted) -> str:
        """Take the process in. Return why there is none; empty if there is one, or one is still to come."""
        if not self._awaited:
            return ""
        self._awaited -= 1
        if (known := self._job.workers.get(message.worker)) is not None and not known.rehearses:
            return f"{message.worker} is another process's name"
        if message.pid == 0:
            return "" if self._awaited else message.reason
        self._job.workers[message.worker] = Worker(message.worker, node, message.pid, NO_RANK, rehearses=True)
        self.worker = message.worker
        if self._awaited:
            self.end()
        return ""

    def ended(self, exited: WorkerExited) -> str:
        """Drop a process that has ended. Return how it ended, if it was not ended from here; else empty."""
        self._job.workers.forget(exited.worker)
        if exited.worker != self.worker:
            return ""
        self.worker = ""
        return f"its process ended with exit code {exited.exit_code}"

    def end(self) -> None:
        if (known := self._known) is not None and known.alive:
            self._outbox.to_agent_of(self.worker, Fence(self.worker))
        self.worker = ""

    @property
    def _known(self) -> Worker | None:
        return self._job.workers.get(self.worker) if self.worker else None
