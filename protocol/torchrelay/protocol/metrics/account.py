"""What was the time of a job used for? From its events alone, so metrics, the dashboard and a finished run have one answer."""

from __future__ import annotations

from dataclasses import dataclass, field

from torchrelay.protocol.events import (
    JobFell,
    JobFinished,
    JobRestarted,
    MigrationFinished,
    MigrationStarted,
    Occurrence,
    ProgressMade,
    RestartDone,
)
from torchrelay.protocol.metrics.table import REDONE, SET_UP, STOPPED, USEFUL, USES
from torchrelay.protocol.words.phases import CLEARED


@dataclass(frozen=True)
class UsefulTime:
    """What a job's time was used for, in seconds.

    `wall_s`: since the job started. Of it `useful_s` in steps done for the first time, `set_up_s` until the first step,
    `standstill_s` in migrations, `redone_s` in steps that were done again, `restart_s` until all ranks trained again after
    restarts. The rest is the step under way.
    """

    wall_s: float
    useful_s: float
    set_up_s: float
    standstill_s: float
    redone_s: float
    restart_s: float

    @property
    def open_s(self) -> float:
        """Return the time spent in the step under way."""
        used_s = self.useful_s + self.set_up_s + self.standstill_s + self.redone_s + self.restart_s
        return max(self.wall_s - used_s, 0.0)

    @property
    def share(self) -> float:
        """Return the goodput: useful time divided by wall time; 0 before there is any."""
        return min(self.useful_s / self.wall_s, 1.0) if self.wall_s > 0 else 0.0

    @property
    def share_since_first_step(self) -> float:
        """Return useful time divided by wall time without set-up: this shows what failures have cost."""
        trained_s = self.wall_s - self.set_up_s
        return min(self.useful_s / trained_s, 1.0) if trained_s > 0 else 0.0


@dataclass
class Account:
    """Adds up what a job's time was used for, event by event.

    Each moment since the first event counts once, at the boundary that ends it, so no number ever falls.

    `began_s`, `until_s`: times of events; all before `until_s` is in `seconds` and `restart_s`. `redo`: steps ahead that were done
    before.
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
    restarting: bool = False
    """All processes start anew, and do not train again yet."""
    fell: bool = False
    """The job cannot go on in its processes."""
    restart_s: float = 0.0
    seconds: dict[str, float] = field(default_factory=lambda: dict.fromkeys(USES, 0.0))

    def take(self, event: Occurrence, time_s: float) -> None:
        """Take the next event. Events come in order. A clock that is set back counts as a clock that stands still.

        `time_s`: when it happened.
        """
        if self.began_s is None:
            self.began_s = self.until_s = time_s
        if isinstance(event, ProgressMade):
            self.seen = event.steps
            if not (self.under_way or self.restarting):
                self._reached(time_s)
        elif isinstance(event, MigrationStarted):
            self.under_way = event.migration
        elif isinstance(event, MigrationFinished):
            self._over(event, time_s)
        elif isinstance(event, JobFell):
            self.fell = True
        elif isinstance(event, JobRestarted):
            self._begins_anew(event)
        elif isinstance(event, RestartDone):
            self._trains_again(event, time_s)
        elif isinstance(event, JobFinished):
            self.ended_s = time_s

    def wall_s(self, now_s: float) -> float:
        """Return the time since the first event, or between it and the job's end."""
        if self.began_s is None:
            return 0.0
        return max((self.ended_s if self.ended_s is not None else now_s) - self.began_s, 0.0)

    def goodput(self, now_s: float) -> float:
        """Return useful time divided by all time; 0 before there is any."""
        return self.useful_time(now_s).share

    def useful_time(self, now_s: float, stands_since_s: float | None = None) -> UsefulTime:
        """Return the times until `now_s`, or until the job's end.

        `stands_since_s`: when training came to a stand for the migration that is under way.
        """
        wall_s = self.wall_s(now_s)
        seconds = self.seconds
        set_up_s = seconds[SET_UP]
        stopped_s = seconds[STOPPED]
        restart_s = self.restart_s
        if self.began_s is not None:
            end_s = self.began_s + wall_s
            open_s = max(end_s - self.until_s, 0.0)
            if self.fell or self.restarting:
                restart_s += open_s
            elif self.furthest < 0:
                set_up_s += open_s
            elif stands_since_s is not None:
                stopped_s += min(max(end_s - stands_since_s, 0.0), open_s)
        return UsefulTime(wall_s, seconds[USEFUL], set_up_s, stopped_s, seconds[REDONE], restart_s)

    def _begins_anew(self, event: JobRestarted) -> None:
        self.restarting = True
        self.ended_s = None
        self.under_way = ""
        if self.furthest < 0 < event.boundary:  # somebody else has watched the steps before
            self.furthest = event.boundary + event.steps
        if self.furthest >= 0:
            self.boundary = self.seen = max(event.boundary, 0)
            self.redo = self.furthest - self.boundary

    def _trains_again(self, event: RestartDone, time_s: float) -> None:
        self.restarting = self.fell = False
        down_s = min(event.elapsed_s, max(time_s - self.until_s, 0.0))
        self.restart_s += down_s
        self.until_s += down_s
        self._reached(time_s)

    def _over(self, event: MigrationFinished, time_s: float) -> None:
        self.under_way = ""
        self.steps_redone += event.steps_redone
        if event.outcome == CLEARED or self.restarting:  # its time is the restart's
            return
        open_s = max(time_s - self.until_s, 0.0)
        stopped_s = min(sum(event.downtime_s.values()), open_s)
        self.seconds[STOPPED] += stopped_s
        self.until_s += stopped_s
        self.redo += event.steps_redone
        self._reached(time_s)

    def _reached(self, time_s: float) -> None:
        before = self.boundary
        self.boundary = self.seen
        if before < 0 <= self.seen:
            self._count(SET_UP, time_s, 1.0)
            self.furthest = max(self.furthest, self.seen)
        elif self.seen < before:
            self.redo = self.furthest - max(self.seen, 0)
        elif self.seen > before:
            self._stepped(self.seen - before, time_s)

    def _stepped(self, steps: int, time_s: float) -> None:
        self.fell = False
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
