"""Processes that others, such as the kubelet, start again where one has died. Each takes over its own rank."""

from __future__ import annotations

from torchrelay.controller.migration import events as m
from torchrelay.controller.picture.job import Job
from torchrelay.controller.picture.worker import Worker
from torchrelay.controller.replacement.respawns import Respawns


class StartedAgain:
    """The processes. `barred`: why none may take over, by the user's choice."""

    def __init__(self, barred: str, job: Job, respawns: Respawns) -> None:
        self._barred = barred
        self._job = job
        self._respawns = respawns
        self._waiting: set[int] = set()
        """Ranks that wait for their own process: it is no spare for others."""

    def is_everywhere(self) -> bool:
        """Return whether a process is started again for each rank."""
        return not self._barred and all(w.node in self._job.starting_again for w in self._job.rank_workers)

    def is_kept(self, worker: Worker, rank: int) -> bool:
        """Return whether the process is no spare for the rank: it is in the place of this one, or another one waits for it."""
        return any(self._is_own(worker, own) for own in (rank, *self._waiting))

    def is_to_come(self, rank: int) -> bool:
        """Return whether `Job.spares_to_come` counts the rank's own process."""
        return self._job.is_started_again(self._job.holder(rank).node, rank)

    def new_migration(self) -> None:
        self._waiting.clear()

    def goes_elsewhere(self, rank: int) -> None:
        """Take note that a spare has the rank."""
        self._waiting.discard(rank)

    def process_for(self, rank: int, now_s: float) -> m.SpareChosen | m.NoSpare:
        """Return the rank's own process, if it is there again, or why it is not (yet)."""
        self._waiting.discard(rank)
        job = self._job
        leaver = self._job.holder(rank)
        found = next((w for w in job.spares_for(rank) if self._is_own(w, rank)), None)
        if refusal := self._refusal(rank, found is not None, now_s):
            return m.NoSpare(rank, refusal)
        number = self._respawns.number(rank, now_s)
        if found is None or not found.warm:
            self._waiting.add(rank)
            return m.NoSpare(rank, f"rank {rank} waits for the process that its pod starts again ({number})", soon=True)
        self._respawns.count(rank, now_s)
        found.rank = rank
        reason = f"{found.worker}, which its pod has started again, takes over rank {rank} in its place ({number})"
        return m.SpareChosen(rank, found.worker, f"{reason}; it was {leaver.worker}'s")

    def _refusal(self, rank: int, is_there: bool, now_s: float) -> str:
        job = self._job
        leaver = self._job.holder(rank)
        if self._barred:
            return self._barred
        if job.is_lost_with_node(leaver.worker):
            return "no process is started again in its place: its pod is gone"
        if not is_there and leaver.node not in job.starting_again:
            return f"no process is started again in its place: {job.not_again.get(leaver.node, 'its pod is gone')}"
        verdict = self._respawns.may_in_its_place(rank, now_s)
        return "" if verdict.may else verdict.reason

    def _is_own(self, worker: Worker, rank: int) -> bool:
        """Return whether the worker is in the place of the one that had the rank and is lost."""
        if rank not in self._job.holders:
            return False
        leaver = self._job.holder(rank)
        return worker is not leaver and (worker.node, worker.local_rank) == (leaver.node, leaver.local_rank)
