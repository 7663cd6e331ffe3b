"""Tells ranks whether to keep copies of their state, and brings those together who keep one for each other."""

from __future__ import annotations

from dataclasses import replace

from torchrelay.controller.decide.protection.buddies import decide_keeping
from torchrelay.controller.decide.protection.known import Known, is_compared, needs_copies
from torchrelay.controller.decide.protection.own_tensors import own_tensors
from torchrelay.controller.outbox import Outbox
from torchrelay.controller.picture.job import Job
from torchrelay.controller.picture.worker import Worker
from torchrelay.protocol.journals.kept import COPIES_AS_NEEDED
from torchrelay.protocol.messages import CopyReady, CopyTaken, KeepCopies, TakeCopy


class Buddies:
    def __init__(self, every: int, job: Job, outbox: Outbox) -> None:
        self._every = every
        self._job = job
        self._outbox = outbox
        self._told: dict[str, KeepCopies] = {}

    def settle(self, known: Known) -> None:
        """To be called when something has changed that this depends on."""
        job = self._job
        if not self._every or job.protection != "on" or len(job.holders) < job.world_size:
            return
        needing = needs_copies(known)
        compared = is_compared(known)
        if self._every == COPIES_AS_NEEDED and not compared:
            return  # ranks do as they began: a copy of what is small
        nodes = {w.rank: w.node for w in job.rank_workers}
        machines = {rank: job.machines.get(node, node) for rank, node in nodes.items()}
        if len(set(machines.values())) > 1:
            nodes = machines  # with its machine a node loses copies on its neighbour, too
        own = own_tensors(known) if self._every == COPIES_AS_NEEDED else {}
        for worker in job.rank_workers:
            if not worker.alive or job.nodes[worker.node].lost:
                continue
            keeping = decide_keeping(worker.rank, needing, compared, nodes)
            host = job.host_of(job.holders[keeping.buddy]) if keeping.buddy >= 0 else ""
            told = self._told.get(worker.worker)
            paths = own.get(worker.rank, frozenset()).union(told.own if told is not None else ())
            order = KeepCopies(keeping.on, keeping.reason, keeping.buddy, host, known.copy_every, tuple(sorted(paths)))
            if told is None or replace(told, reason="") != replace(order, reason=""):
                self._told[worker.worker] = order
                self._outbox.to_worker(worker.worker, order)

    def buddy_of(self, worker: Worker) -> int:
        told = self._told.get(worker.worker)
        return told.buddy if told is not None and told.on else -1

    def ready(self, worker: Worker, report: CopyReady, now_s: float) -> None:
        buddy = self.buddy_of(worker)
        if self._job.is_holder(worker) and buddy >= 0:
            order = TakeCopy(worker.rank, report.boundary, report.host, report.port, report.token)
            self._outbox.to_worker(self._job.holders[buddy], order)

    def taken(self, worker: Worker, report: CopyTaken, now_s: float) -> None:
        if report.reason:
            text = f"rank {worker.rank} could not fetch the copy of rank {report.rank} after step {report.boundary}"
            self._outbox.log_once("warning", f"{text}: {report.reason}")
        elif report.rank in self._job.holders:
            self._job.holder(report.rank).copy_on = worker.node
