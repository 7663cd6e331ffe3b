"""What was the time of a job used for? From its events alone, so a finished run's event file has the same answer."""

from __future__ import annotations

from dataclasses import dataclass, field

from torchrelay.protocol.events import JobFinished, MigrationFinished, MigrationStarted, Occurrence, ProgressMade
from torchrelay.protocol.metrics.table import REDONE, SET_UP, STOPPED, USEFUL, USES
from torchrelay.protocol.phases import CLEARED


@dataclass
class Account:
    """Each moment since the first event counts once, at the boundary that ends it, so no number ever falls.

    `began_s`, `until_s`: times of events; all before `until_s` is in `seconds`. `redo`: steps ahead that were done before.
    """

    began_s: float | None = None
    until_s: float = 0.0
    ended_s: float | None = None
    boundary: int = -1
    furthest: int = -1
    seen: int = -1
    """The newest boundary that was told; it counts once no migration is under way."""
    redo: int = 0
    steps: int = 0
    steps_redone: int = 0
    under_way: str = ""
    seconds: dict[str, float] = field(default_factory=lambda: dict.fromkeys(USES, 0.0))

    def take(self, event: Occurrence, time_s: float) -> None:
        """`time_s`: when it happened. Events come in order; a clock that is set back counts as standing still."""
        if self.began_s is None:
            self.began_s = self.until_s = time_s
        if isinstance(event, ProgressMade):
            self.seen = event.boundary
            if not self.under_way:
                self._reached(time_s)
        elif isinstance(event, MigrationStarted):
            self.under_way = event.migration
        elif isinstance(event, MigrationFinished):
            self._over(event, time_s)
        elif isinstance(event, JobFinished):
            self.ended_s = time_s

    def wall_s(self, now_s: float) -> float:
        """Since the first event, or between it and the job's end."""
        if self.began_s is None:
            return 0.0
        return max((self.ended_s if self.ended_s is not None else now_s) - self.began_s, 0.0)

    def goodput(self, now_s: float) -> float:
        """Useful time by all time; 0 before there is any."""
        wall_s = self.wall_s(now_s)
        return min(self.seconds[USEFUL] / wall_s, 1.0) if wall_s > 0 else 0.0

    def _over(self, event: MigrationFinished, time_s: float) -> None:
        self.under_way = ""
        self.steps_redone += event.steps_redone
        if event.outcome == CLEARED:
            return
        open_s = max(time_s - self.until_s, 0.0)
        stopped_s = min(sum(event.downtime_s.values()), open_s)
        self.seconds[STOPPED] += stopped_s
        self.until_s += stopped_s
        self.redo += event.steps_redone
        self._reached(time_s)

    def _reached(self, time_s: float) -> None:
        before, self.boundary = self.boundary, self.seen
        if before < 0 <= self.seen:
            self._count(SET_UP, time_s, 1.0)
            self.furthest = self.seen
        elif self.seen < before:
            self.redo = self.furthest - self.seen
        elif self.seen > before:
            self._stepped(self.seen - before, time_s)

    def _stepped(self, steps: int, time_s: float) -> None:
        redone = min(self.redo, steps)
        share = redone / steps
        open_s = max(time_s - self.until_s, 0.0)
        self.seconds[REDONE] += open_s * share
        self._count(USEFUL, time_s, 1.0 - share)
        self.redo -= redone
        self.steps += max(self.seen - self.furthest, 0)
        self.furthest = max(self.furthest, self.seen)

    def _count(self, use: str, time_s: float, share: float) -> None:
        self.seconds[use] += max(time_s - self.until_s, 0.0) * share
        self.until_s = max(time_s, self.until_s)
