"""How much of its time a run has trained: useful time divided by wall time, and where the rest went. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from torchrelay.dashboard.record import RunRecord


@dataclass(frozen=True)
class UsefulTime:
    """Seconds. `wall_s`: since the job started. Of it `set_up_s` until the first step, `standstill_s` in migrations,
    `redone_s` for steps that were done again, `restart_s` until all ranks trained again after restarts.
    """

    wall_s: float
    set_up_s: float
    standstill_s: float
    redone_s: float
    restart_s: float

    @property
    def useful_s(self) -> float:
        return max(0.0, self.wall_s - self.set_up_s - self.standstill_s - self.redone_s - self.restart_s)

    @property
    def share(self) -> float:
        """Useful time ÷ wall time; 0 before there is any."""
        return self.useful_s / self.wall_s if self.wall_s > 0 else 0.0

    @property
    def share_since_first_step(self) -> float:
        """The same without set-up: what failures have cost."""
        trained_s = self.wall_s - self.set_up_s
        return self.useful_s / trained_s if trained_s > 0 else 0.0


def useful_time(record: RunRecord, now_s: float) -> UsefulTime:
    """Until `now_s`, or until the job's end."""
    if not record.started_s:
        return UsefulTime(0.0, 0.0, 0.0, 0.0, 0.0)
    end_s = record.ended.time_s if record.ended is not None else now_s
    wall_s = max(0.0, end_s - record.started_s)
    set_up_s = min(wall_s, (record.first_step_s or end_s) - record.started_s)
    standstill_s, restart_s = record.totals.standstill_s, record.totals.restart_s
    running = record.under_way
    if running is not None and running.stands_since_s is not None:
        standstill_s += max(0.0, end_s - running.stands_since_s)
    if record.fell is not None and record.restarts and record.restarts[-1].down_s is None:
        restart_s += max(0.0, end_s - record.fell.time_s)
    again = record.totals.steps_redone + record.totals.steps_of_restarts
    redone_s = again * _step_s(record, wall_s - set_up_s - standstill_s - restart_s, again)
    return UsefulTime(wall_s, set_up_s, standstill_s, redone_s, restart_s)


def _step_s(record: RunRecord, stepping_s: float, again: int) -> float:
    """The mean step, those that were done again among them."""
    steps = max(record.boundary, 0) + again
    return max(0.0, stepping_s) / steps if steps else 0.0
