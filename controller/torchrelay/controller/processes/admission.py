"""Takes in processes that others have started: tells each what it is to be, and forgets processes that take no part.

A controller that is new to a job which trains finds processes that another one has let begin: it takes their word for it.
"""

from __future__ import annotations

from collections.abc import Callable

from torchrelay.controller.decide.migration.take_over import Claim, TakeOver, take_over
from torchrelay.controller.decide.protection.copies import choose_keeper
from torchrelay.controller.decide.replacement.admit import Applicant, admit
from torchrelay.controller.outbox import Outbox
from torchrelay.controller.picture.job import Job
from torchrelay.controller.picture.node import Node
from torchrelay.controller.picture.worker import Worker
from torchrelay.protocol.events import TakenOver
from torchrelay.protocol.kube.local_ranks import misfit
from torchrelay.protocol.messages import (
    Abandon,
    Armed,
    Begin,
    Commit,
    Fence,
    LookClosely,
    RestartWorkers,
    TellAgain,
    WorkerExited,
    WorkerInfo,
)
from torchrelay.protocol.names import NO_RANK
from torchrelay.protocol.words.positions import STANDS_STILL

MISSING_S = 15.0
"""Time for the agents of a job to find a new controller. One that does not come counts as lost, if its peers wait for it."""
LONE_MISSING_S = 3.0
"""As long as an agent may be away from a controller that has met it."""
WAITED_S = 2.0
CLAIMS_AT_ONCE = 64
"""Claims beyond these are taken in by their share: to choose costs a look at all of them."""


class Entrance:
    """The entrance of one job. `adopts`: whether others start the processes of this job.

    `fenced_after_s`: machines that are cut off have ended their processes by then; until then they could train, if no rank is here.
    """

    def __init__(self, job: Job, outbox: Outbox, adopts: bool, fenced_after_s: float = 0.0) -> None:
        self._job = job
        self._outbox = outbox
        self._adopts = adopts
        self._fenced_after_s = fenced_after_s
        self._first_s: float | None = None
        self._remembered: dict[int, str] = {}
        self._kept: list[tuple[Worker, WorkerExited]] = []
        self._claims: dict[str, WorkerInfo] = {}
        self._chosen_of = 0
        """How many claims there were when the holders of ranks were chosen last."""
        self._is_settled = False
        self._missing_s = MISSING_S
        self.may_live: Callable[[str], bool] = lambda node: True
        """Returns whether processes may run on a node that is not heard, as far as others than its agent know."""
        self.gathers = False
        """Whether the job begins again: all processes are parked first, and one that trains is of the time before."""
        self.began_again = self.resumes = False

    def remember(self, holders: dict[int, str]) -> None:
        """Take in, for each rank, the worker that had it, as an earlier controller has written down."""
        self._remembered = dict(holders)

    def take_in(self, node: str, info: WorkerInfo, now_s: float) -> None:
        """Answer the process, unless it is known."""
        if info.worker in self._job.workers:
            return
        if self.gathers or (self.began_again and info.generation >= 0):
            self._park(node, info, now_s)
            return
        if info.generation >= 0:
            self._adopt(node, info, now_s)
            return
        job = self._job
        holder = job.holders.get(info.rank, "")
        applicant = Applicant(
            info.worker,
            info.rank,
            job.world_size,
            holder or self._remembered.get(info.rank, ""),
            bool(holder) and job.workers[holder].alive,
            job.protection == "pending" and not self._remembered,
        )
        admission = admit(applicant)
        if holder and admission.rank == info.rank:
            del job.holders[info.rank]
        self._add(node, info, admission.rank, now_s)
        self._outbox.log("info", admission.reason)
        self._outbox.to_worker(info.worker, Begin(info.worker, "", admission.rank == NO_RANK))

    def _add(self, node: str, info: WorkerInfo, rank: int, now_s: float) -> Worker:
        """Add a process to the job.

        One that does not fit into the job's pods is of no use as a spare; as a rank it leaves the job unprotected.
        """
        job = self._job
        job.add(node, info, rank, now_s)
        worker = job.workers[info.worker]
        worker.disabled = misfit(info.launch, rank, job.world_size, job.local_world_size)
        if worker.disabled:
            self._outbox.log("warning", f"{info.worker}: {worker.disabled}")
        return worker

    def _park(self, node: str, info: WorkerInfo, now_s: float) -> None:
        if info.generation >= 0:
            self._outbox.to_agent(node, RestartWorkers(f"{info.worker} is of the time before the job began again"))
            return
        self._add(node, info, NO_RANK, now_s)
        self._job.workers[info.worker].home_rank = info.rank
        self._outbox.log("info", f"{info.worker} is there to begin again")
        self._outbox.to_worker(info.worker, Begin(info.worker, "", True))

    def _adopt(self, node: str, info: WorkerInfo, now_s: float) -> None:
        """Take in a process that trains, or a spare that is parked.

        If several say that they have a rank, this is settled when all processes are there.
        """
        job = self._job
        self._first_s = now_s if self._first_s is None else self._first_s
        job.generation = max(job.generation, info.generation)
        job.gate_secret = job.gate_secret or info.gate_secret
        worker = self._add(node, info, info.rank, now_s)
        if info.rank != NO_RANK:
            self._claims[info.worker] = info
            if len(self._claims) - self._chosen_of > self._chosen_of // CLAIMS_AT_ONCE:
                self._choose_holders(now_s)
            if info.protected:
                worker.armed = Armed(info.rank, job.world_size, "", "")
        self._outbox.log("info", f"{info.worker} was there before this controller: {_what(info.rank)}")
        if (node, again := TellAgain()) not in self._outbox.orders:  # once for all that one agent tells of
            self._outbox.to_agent(node, again)

    def _choose_holders(self, now_s: float) -> TakeOver:
        """Choose the holders of ranks for now. A process that is still to come may know better, and has its time."""
        self._chosen_of = len(self._claims)
        workers = self._job.workers
        gone = {worker.worker for worker, _ in self._kept}
        claims = [
            Claim(name, info.rank, info.in_force, info.generation, name in gone or not workers[name].alive)
            for name, info in self._claims.items()
        ]
        verdict = take_over(claims, self._remembered)
        for rank in {c.rank for c in claims}:
            self._job.holders.pop(rank, None)
        for rank, worker in verdict.holders.items():
            if self._remembered.get(rank, worker) in workers or self._is_late(now_s):
                self._job.holders[rank] = worker
        return verdict

    @property
    def is_taking_over(self) -> bool:
        """Whether the job trains, and it is not known yet which process has which rank."""
        return self._first_s is not None and not self._is_settled

    def settle(self, now_s: float) -> None:
        """Finish, or take back, a migration that the earlier controller led, once all processes are there or their time is over."""
        if not self.is_taking_over:
            return
        if self._chosen_of != len(self._claims):
            self._choose_holders(now_s)
        if self._is_gathering(now_s) or not self._claims:
            return
        self._is_settled = True
        verdict = self._choose_holders(now_s)
        if verdict.reason:
            self._outbox.log("warning", verdict.reason)
        self._outbox.emit(TakenOver(verdict.outcome, verdict.reason))
        self._outbox.to_all_agents(LookClosely(False))  # the one before may have asked for it
        for worker in verdict.commit:
            self._outbox.to_worker(worker, Commit(verdict.generation))
        for worker in verdict.abandon:
            self._outbox.to_worker(worker, Abandon(verdict.generation, verdict.reason))
        for worker in verdict.end:
            self._outbox.log(
                "warning",
                f"{worker} says that it has rank {self._job.workers[worker].rank}, which another process has: it is ended",
            )
            self._outbox.to_agent_of(worker, Fence(worker))

    def keeps(self, worker: Worker, exited: WorkerExited, now_s: float) -> bool:
        """Return whether the end of a process is not to be judged now, or not at all."""
        if self._adopts and worker.armed is None and self._job.protection == "pending" and not self._joins(worker):
            self._job.forget(worker)  # a program that prepares data, or a start that failed
            return True
        if self._is_gathering(now_s):
            self._kept.append((worker, exited))
            return True
        return False

    def _joins(self, worker: Worker) -> bool:
        """Return whether the worker enters from a checkpoint, so that a migration has to hear of its end."""
        return self.resumes and worker.rank != NO_RANK

    def _is_gathering(self, now_s: float) -> bool:
        """Return whether agents of a job that trains are still to come: before that no end can be judged."""
        return self._first_s is not None and self._job.protection == "pending" and not self._is_late(now_s)

    def others_are_there(self) -> None:
        """Leave only a moment for processes that are missing: all machines that are known to live are there."""
        self._missing_s = LONE_MISSING_S

    def _is_late(self, now_s: float) -> bool:
        return self._first_s is not None and now_s - self._first_s >= self._missing_s

    def _is_fenced(self, now_s: float) -> bool:
        return self._first_s is not None and now_s - self._first_s >= self._fenced_after_s

    def take_kept(self, now_s: float) -> list[tuple[Worker, WorkerExited]]:
        """Return the ends that were kept, once all processes are there or their time is over."""
        if self._is_gathering(now_s):
            return []
        kept = self._kept
        self._kept = []
        return kept

    def missing(self, now_s: float) -> list[Worker]:
        """Return holders that an earlier controller knew and that have not come while their peers wait. Each is told once."""
        if not self._is_late(now_s) or not self._is_waited_for(now_s):
            return []
        job = self._job
        may_live = any(self.may_live(worker.rpartition(".")[0]) for worker in self._remembered.values())
        if may_live and not any(w.alive for w in job.rank_workers) and not self._is_fenced(now_s):
            return []  # all of them may train where nobody is heard
        found = []
        for rank, worker in sorted(self._remembered.items()):
            if rank in job.holders or not 0 <= rank < job.world_size:
                continue
            node = worker.rpartition(".")[0]
            reason = "not seen since this controller began"
            job.nodes.setdefault(node, Node(node, -1, "", 0, b"", now_s, None, reason))
            job.add(node, WorkerInfo(worker, rank, 0), rank, now_s)
            lost = job.workers[worker]
            lost.armed = Armed(rank, job.world_size, "", "")
            there = [n for n in job.nodes.values() if not n.lost]
            told = max((n for n in there if worker in n.copies_of), key=lambda n: n.copies_of[worker], default=None)
            guess = choose_keeper(node, [n.node for n in there], job.machines)
            lost.copies_to = told.node if told is not None else guess
            lost.seen_boundary = 0
            found.append(lost)
        return found

    def _is_waited_for(self, now_s: float) -> bool:
        """Return whether ranks that are here stand still for others. An agent that does not come proves nothing by itself."""
        here = [w for w in self._job.rank_workers if w.alive]
        return (
            any(
                w.progress is not None
                and (w.progress.waiting or w.progress.phase in STANDS_STILL)
                and w.silent_s(now_s) >= WAITED_S
                for w in here
            )
            or not here
        )


def _what(rank: int) -> str:
    return "a spare" if rank == NO_RANK else f"rank {rank}"
