"""New processes in the place of lost ones: asks the agent for them, and remembers how often."""

from __future__ import annotations

from collections import defaultdict

from torchrelay.controller.decide.respawn import HOUR_S, Place, may_respawn
from torchrelay.controller.job import Job
from torchrelay.controller.outbox import Outbox
from torchrelay.protocol import migration_events as m
from torchrelay.protocol.messages import StartWorker


class Respawns:
    """`limit`: how often within an hour for each rank; 0: never."""

    def __init__(self, limit: int, job: Job, outbox: Outbox) -> None:
        self._limit, self._job, self._outbox = limit, job, outbox
        self._starting: set[int] = set()
        self._started_s: dict[int, list[float]] = defaultdict(list)
        self._losses: dict[int, dict[int, int]] = defaultdict(dict)
        """By rank, the boundary that each migration has found it at, by the migration's number."""
        self.now_s = 0.0

    @property
    def is_on(self) -> bool:
        return self._limit > 0

    @property
    def spent(self) -> str:
        """Why no process is started for some rank now, if it is lost; empty if one is for all."""
        spent = [rank for rank in self._started_s if self.is_on and self._recent(rank, self.now_s) >= self._limit]
        return (
            f"--respawn-limit {self._limit} is used up for rank {', '.join(map(str, sorted(spent)))}" if spent else ""
        )

    def lost(self, rank: int, migration: int) -> None:
        """To be told once the rank's journals are there."""
        self._losses[rank][migration] = max(self._job.journal(rank).boundaries, default=-1)

    def losses_at_step(self, rank: int) -> int:
        """How often it has been lost where it was lost last."""
        boundaries = list(self._losses.get(rank, {}).values())
        return boundaries.count(boundaries[-1]) if boundaries else 1

    def process_for(self, rank: int, now_s: float) -> m.SpareChosen | m.NoSpare:
        """The one that was started, or why there is none (yet)."""
        job = self._job
        if (found := next((w for w in job.spares if w.started_for == rank), None)) is not None and found.warm:
            job.workers[found.worker].rank = rank
            self._starting.discard(rank)
            reason = f"{found.worker} was started in the place of rank {rank} on {found.node}, and takes over"
            return m.SpareChosen(rank, found.worker, reason)
        if found is not None or rank in self._starting:
            return m.NoSpare(rank, f"rank {rank} waits for the process that is started in its place", soon=True)
        verdict = may_respawn(self._place(rank, now_s))
        if verdict.may:
            self._starting.add(rank)
            self._started_s[rank].append(now_s)
            self._outbox.to_agent(job.holder(rank).node, StartWorker(rank))
        return m.NoSpare(rank, verdict.reason, soon=verdict.may)

    def _place(self, rank: int, now_s: float) -> Place:
        leaver = self._job.holder(rank)
        away = "its machine cannot be reached" if self._job.is_away(leaver) else ""
        boundary = next(reversed(self._losses[rank].values()), -1)
        unusable = self._job.quarantined(leaver) or away
        return Place(rank, boundary, unusable, self._recent(rank, now_s), self._limit, self.losses_at_step(rank))

    def _recent(self, rank: int, now_s: float) -> int:
        return sum(now_s - started_s < HOUR_S for started_s in self._started_s.get(rank, ()))

    def over(self, rank: int) -> None:
        """The process that was started for the rank could not be, or is gone."""
        self._starting.discard(rank)
