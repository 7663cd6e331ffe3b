"""New processes in the place of lost ones: asks the agent for them, and remembers how often."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable

from torchrelay.controller.decide.respawn import HOUR_S, Place, Respawn, comes_again, may_respawn
from torchrelay.controller.job import Job, Worker
from torchrelay.controller.outbox import Outbox
from torchrelay.protocol import migration_events as m
from torchrelay.protocol.events import ProcessRespawned
from torchrelay.protocol.messages import StartWorker

LOSSES_KEPT = 16
"""Of each rank: those at its latest step are among them."""


class Respawns:
    """`limit`: how often within an hour for each rank; 0: never. `option`: what sets it."""

    def __init__(self, limit: int, job: Job, outbox: Outbox, option: str = "--respawn-limit") -> None:
        self._limit, self._job, self._outbox, self._option = limit, job, outbox, option
        self.is_possible: Callable[[], bool] = lambda: True
        """Whether whoever starts them would do so for each rank."""
        self._starting: set[int] = set()
        self._started_s: dict[int, list[float]] = defaultdict(list)
        self._losses: dict[int, dict[int, int]] = defaultdict(dict)
        """By rank, the boundary that each migration has found it at, by the migration's number."""
        self._ends: dict[int, dict[int, str]] = defaultdict(dict)
        """By the same, how it ended."""
        self.now_s = 0.0

    @property
    def is_on(self) -> bool:
        return self._limit > 0 and self.is_possible()

    @property
    def spent(self) -> str:
        """Why no process is started for some rank now, if it is lost; empty if one is for all."""
        spent = [rank for rank in self._started_s if self.is_on and self._recent(rank, self.now_s) >= self._limit]
        return f"{self._option} {self._limit} is used up for rank {', '.join(map(str, sorted(spent)))}" if spent else ""

    def lost(self, rank: int, migration: int) -> None:
        """To be told once the rank's journals are there."""
        self._losses[rank][migration] = max(self._job.journal(rank).boundaries, default=-1)
        self._ends[rank].setdefault(migration, _end_of(self._job.holder(rank)))
        for kept in (self._losses[rank], self._ends[rank]):
            for number in list(kept)[:-LOSSES_KEPT]:
                del kept[number]

    def losses_at_step(self, rank: int) -> int:
        """How often it has been lost where it was lost last."""
        boundaries = list(self._losses.get(rank, {}).values())
        return boundaries.count(boundaries[-1]) if boundaries else 1

    def comes_again(self, rank: int) -> str:
        """Why nobody takes over the rank any more, or empty."""
        at, ends = self.boundary(rank), self._ends[rank]
        story = [ends[number] for number, boundary in self._losses[rank].items() if boundary == at and number in ends]
        return comes_again(rank, at, self.losses_at_step(rank), story)

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
        verdict = self.may(rank, now_s)
        if verdict.may:
            self._starting.add(rank)
            self.count(rank, now_s)
            leaver = job.holder(rank)
            self._outbox.to_agent(leaver.node, StartWorker(rank, leaver.worker))
            count = self._recent(rank, now_s)
            self._outbox.emit(ProcessRespawned(rank, leaver.node, self.boundary(rank), count, self._limit))
        return m.NoSpare(rank, verdict.reason, soon=verdict.may)

    def may(self, rank: int, now_s: float) -> Respawn:
        return may_respawn(self._place(rank, now_s))

    def count(self, rank: int, now_s: float) -> None:
        """One is started in its place, or was by others."""
        self._started_s[rank] = [s for s in self._started_s[rank] if now_s - s < HOUR_S] + [now_s]

    def number(self, rank: int, now_s: float) -> str:
        """Which one the next is, in words."""
        return f"{self._recent(rank, now_s) + 1} of {self._limit} within the hour"

    def boundary(self, rank: int) -> int:
        """Where the rank was lost last; -1 if that is not known."""
        return next(reversed(self._losses[rank].values()), -1)

    def recall(self, rank: int, boundary: int, started_s: float | None) -> None:
        """A loss before this controller, or these processes; `started_s`: when a process was started in its place then."""
        self._losses[rank][-1 - len(self._losses[rank])] = boundary
        if started_s is not None:
            self._started_s[rank].append(started_s)

    def recall_starts(self, started: Iterable[str], ago_s: float) -> None:
        """`started`: as ControllerConfig.respawned has them; `ago_s`: what takes the time of day to this clock."""
        for rank, at_s in (text.split(" ") for text in started):
            self._started_s[int(rank)].append(float(at_s) + ago_s)

    def _place(self, rank: int, now_s: float) -> Place:
        leaver = self._job.holder(rank)
        away = "its machine cannot be reached" if self._job.is_away(leaver) else ""
        unusable = self._job.quarantined(leaver) or away
        return Place(rank, unusable, self._recent(rank, now_s), self._limit, self._option)

    def _recent(self, rank: int, now_s: float) -> int:
        return sum(now_s - started_s < HOUR_S for started_s in self._started_s.get(rank, ()))

    def over(self, rank: int) -> None:
        """The process that was started for the rank could not be, or is gone."""
        self._starting.discard(rank)


def _end_of(worker: Worker) -> str:
    exited = worker.exited
    if exited is None or exited.fenced:
        return f"{worker.worker} was ended"
    how = f"by signal {exited.signal}" if exited.signal else f"with exit code {exited.exit_code}"
    return f"{worker.worker} ended {how}"
