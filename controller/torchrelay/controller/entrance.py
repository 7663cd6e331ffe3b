"""Takes in processes that others have started: says to each what it is to be, and forgets those that were none of the job's."""

from __future__ import annotations

from torchrelay.controller.decide.admit import Applicant, admit
from torchrelay.controller.job import Job, Worker
from torchrelay.controller.outbox import Outbox
from torchrelay.protocol.messages import Begin, WorkerInfo
from torchrelay.protocol.names import NO_RANK


class Entrance:
    def __init__(self, job: Job, outbox: Outbox) -> None:
        self._job, self._outbox = job, outbox

    def take_in(self, node: str, info: WorkerInfo, now_s: float) -> None:
        """Answers the process, unless it is known."""
        job = self._job
        if info.worker in job.workers:
            return
        holder = job.holders.get(info.rank, "")
        applicant = Applicant(
            info.worker,
            info.rank,
            job.world_size,
            holder,
            bool(holder) and job.workers[holder].alive,
            job.protection == "pending",
        )
        admission = admit(applicant)
        if holder and admission.rank == info.rank:
            del job.holders[info.rank]
        job.add(node, info, admission.rank, now_s)
        self._outbox.log("info", admission.reason)
        self._outbox.to_worker(info.worker, Begin(info.worker, "", admission.rank == NO_RANK))

    def is_stranger(self, worker: Worker) -> bool:
        """Whether a process that has ended had no process group yet: a program that prepares data, or a start that failed."""
        return worker.armed is None and self._job.protection == "pending"
