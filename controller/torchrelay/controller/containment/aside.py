"""A job in which torchrelay itself has failed: nothing is decided for it any more, and its ranks train on as under torchrun.

This code leans on as little as can be of what it takes over: that may be what has failed.
"""

from __future__ import annotations

import signal
from collections.abc import Callable

from torchrelay.controller.migration.state import State
from torchrelay.controller.outbox import Outbox
from torchrelay.controller.picture.job import Job
from torchrelay.controller.picture.node import Node
from torchrelay.controller.picture.worker import Worker
from torchrelay.protocol import messages as msg
from torchrelay.protocol.events import Protection
from torchrelay.protocol.names import NO_RANK
from torchrelay.protocol.words.causes import ProtectionCause
from torchrelay.protocol.words.level import Level
from torchrelay.protocol.words.phases import UNFORCED, Phase
from torchrelay.protocol.words.positions import RankPhase

TRAINS = (Phase.HEALTHY, Phase.SUSPECTED, Phase.COMMITTED, Phase.ABANDONED)
CAN_GO_ON = (
    Phase.PREPARING,
    Phase.QUIESCING,
    Phase.TRANSFERRING,
    Phase.REBUILDING,
    Phase.VERIFYING,
    Phase.CHECKPOINTING,
)
"""Phases of a planned move or a save in which every rank is still there."""
STANDS_S = 10.0
MOST_OF_A_NODE = 256
"""The most processes of a node that are remembered."""
AS_WITHOUT = "the job ends, as with torchrun"


class Aside:
    """The job. `end_job(exit_code, reason)` ends the job. `reason`: what has failed."""

    def __init__(self, job: Job, outbox: Outbox, end_job: Callable[[int, str], None], reason: str) -> None:
        self._job = job
        self._outbox = outbox
        self._end_job = end_job
        self.reason = reason

    def begin(self, migration: State | None, now_s: float) -> None:
        """Let all ranks go on that can, and end the job if they cannot."""
        job = self._job
        job.protection_reason = self.reason
        job.protection = "off"
        job.journals.clear()
        self._outbox.emit(Protection(Level.UNPROTECTED.value, self.reason, ProtectionCause.FAULT.value))
        if migration is None or migration.phase in TRAINS:
            for worker in job.rank_workers:
                self._begins(worker)
        elif migration.kind in UNFORCED and migration.phase in CAN_GO_ON:
            for worker_id in migration.holders.values():
                self._outbox.to_worker(worker_id, msg.Abandon(migration.generation, self.reason))
            for joiner in migration.joiners.values():
                self._outbox.to_agent_of(joiner.worker, msg.Fence(joiner.worker))
        else:
            self._end_job(1, f"{self.reason}, and ranks stood still for a migration: {AS_WITHOUT}")

    def attach(self, hello: msg.AgentHello, now_s: float) -> None:
        """Take in an agent that is there, or back."""
        known = self._job.nodes.get(hello.node)
        if known is None:
            self._job.nodes[hello.node] = Node(hello.node, hello.node_rank, hello.host, 0, b"", now_s)
        elif not known.lost:
            known.away_since_s = None
        for info in hello.workers:
            self._started(hello.node, info)

    def receive(self, node: str, message: msg.FromAgent, now_s: float) -> None:
        """Take in a message of an agent. No rank is replaced, and no process waits for an answer."""
        job = self._job
        if isinstance(message, msg.AgentHello):
            self.attach(message, now_s)
        elif isinstance(message, msg.WorkerStarted):
            self._started(node, message.info)
        elif isinstance(message, msg.WorkerExited):
            worker = job.workers.get(message.worker)
            if worker is not None and worker.node == node:
                self._exited(worker, message)
        elif isinstance(message, msg.Progress):
            for seen in message.workers:
                self._looked(node, seen)
        elif isinstance(message, msg.FromWorker):
            worker = job.workers.get(message.worker)
            if worker is not None and worker.node == node:
                self._said(worker, message.report)

    def lose(self, node: str, reason: str) -> None:
        """End the job, if a rank lived on `node`, on which nothing lives any more."""
        for worker in self._job.rank_workers:
            if worker.node == node and worker.alive and not worker.finishing:
                self._end_job(128 + signal.SIGKILL, f"rank {worker.rank} is lost: {reason}; {self._why()}")
                return

    def _started(self, node: str, info: msg.WorkerInfo) -> None:
        if info.worker not in self._job.workers and self._has_place(node):
            self._job.workers[info.worker] = Worker(info.worker, node, info.pid, info.rank)
            if info.rank != NO_RANK:
                self._job.holders.setdefault(info.rank, info.worker)
        if info.generation < 0:
            begin = msg.Begin(info.worker, "", info.rank == NO_RANK, refusal=self.reason)
            self._outbox.to_agent(node, msg.ToWorker(info.worker, begin))

    def _has_place(self, node: str) -> bool:
        """Return whether one more process of the node may be remembered, and make room if needed.

        Nothing else counts any more how much the agents of this job take.
        """
        there = self._job.workers.on(node)
        if len(there) < MOST_OF_A_NODE:
            return True
        over = next((w for w in there if not w.alive and not self._job.is_holder(w)), None)
        if over is not None:
            self._job.workers.forget(over.worker)
        return over is not None

    def _begins(self, worker: Worker) -> None:
        """Tell a rank that it is not protected. It may wait for this answer to go on."""
        self._outbox.to_worker(worker.worker, msg.Protect(False, self.reason))

    def _exited(self, worker: Worker, exited: msg.WorkerExited) -> None:
        first_word = worker.exited is None
        worker.exited = exited
        if first_word and self._job.is_holder(worker) and (exited.exit_code or exited.signal):
            code = exited.exit_code or 128 + exited.signal
            self._end_job(code, f"rank {worker.rank} has ended with exit code {code}; {self._why()}")
        elif not any(w.alive for w in self._job.rank_workers):
            self._end_job(0, "all ranks are done")

    def _said(self, worker: Worker, report: msg.ShimReport) -> None:
        if isinstance(report, msg.Armed):
            self._begins(worker)
        elif isinstance(report, msg.Finishing):
            worker.finishing = True
            self._outbox.to_worker(worker.worker, msg.MayFinish())

    def _looked(self, node: str, seen: msg.WorkerProgress) -> None:
        """End the job if a rank has lost its connection to another one: it stands still then.

        After a move that was taken back a rank stands, too, but only for a moment.
        """
        worker = self._job.workers.get(seen.worker)
        if worker is None or worker.node != node or not self._job.is_holder(worker):
            return
        if seen.phase == RankPhase.STANDING and seen.still_s >= STANDS_S:
            self._end_job(1, f"rank {worker.rank} has lost its connection to others; {self._why()}")

    def _why(self) -> str:
        return f"nothing is replaced any more ({self.reason}): {AS_WITHOUT}"
