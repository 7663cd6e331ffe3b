"""What processes that have been replaced leave behind: their journals, and copies of them, are in memory somewhere."""

from __future__ import annotations

from torchrelay.controller.outbox import Outbox
from torchrelay.controller.picture.job import Job
from torchrelay.protocol.messages import ForgetJournals
from torchrelay.protocol.names import NO_RANK


class Leftovers:
    def __init__(self, job: Job, outbox: Outbox) -> None:
        self._job = job
        self._outbox = outbox
        self._forgotten: set[str] = set()

    def settle(self) -> None:
        """To be called while no migration is under way, which may need what a lost rank has left."""
        for worker in self._job.workers.values():
            done = not worker.alive and worker.rank != NO_RANK and worker.worker not in self._forgotten
            if done and not self._job.is_holder(worker):
                self._forgotten.add(worker.worker)
                worker.report = worker.armed = worker.progress = None
                self._outbox.to_all_agents(ForgetJournals(worker.worker))
