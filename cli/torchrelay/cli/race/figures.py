"""What the steps of a run amount to: how fast it was, what each fault cost. Pure."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from torchrelay.cli.race.step_log import RankLog


@dataclass(frozen=True)
class RaceFaultCost:
    """The cost of one fault.

    `stall_s`: the longest time, until the next fault, without a step of any rank, beyond a usual step.
    `redo_s`: how much longer it took until a step was done that was new.
    """

    stall_s: float
    redo_s: float

    @property
    def downtime_s(self) -> float:
        return self.stall_s + self.redo_s


@dataclass(frozen=True)
class Figures:
    """The figures of a run. `steps`: different steps that were done. `training_s`: from the first to the last step.

    `step_s`: median, of new steps. `rank_steps_missed`: pairs of a rank and a step that others did without it.
    `steps_redone`: None if the script's optimizer does not number its steps.
    """

    ranks: int
    steps: int
    training_s: float
    step_s: float
    steps_redone: int | None
    rank_steps_missed: int
    costs: tuple[RaceFaultCost, ...]
    progress: tuple[tuple[float, int], ...]
    """(seconds since the first step, steps done), for the picture."""

    @property
    def effective_steps_per_min(self) -> float:
        """Return effective steps per minute: a step that half of the ranks did counts as half a step."""
        done = self.steps - 1 - self.rank_steps_missed / self.ranks
        return 60 * done / self.training_s if self.training_s > 0 else 0.0

    @property
    def downtime_s(self) -> float:
        return sum(cost.downtime_s for cost in self.costs)

    @property
    def wasted_rank_s(self) -> float:
        """Return the seconds of a rank that brought nothing new: standing still, doing steps again, and being away."""
        return self.ranks * self.downtime_s + self.rank_steps_missed * self.step_s


def fold(logs: Sequence[RankLog], struck_unix_s: Sequence[float]) -> Figures | None:
    """Return the figures of a run; None if fewer than two steps were done. `struck_unix_s`: when faults struck, in their order."""
    has_numbers = all(step.number is not None for log in logs for step in log.steps)
    done = [_numbered(log, has_numbers) for log in logs]
    in_order = sorted((unix_s, number) for steps in done for number, unix_s in steps)
    new: list[tuple[float, int]] = []
    for unix_s, number in in_order:
        if not new or number > new[-1][1]:
            new.append((unix_s, number))
    if len(new) < 2:
        return None
    gaps = [b[0] - a[0] for a, b in pairwise(new)]
    step_s = statistics.median(gaps)
    numbers = {number for _, number in new}
    redone = max(len(steps) - len({n for n, _ in steps}) for steps in done)
    began_s = new[0][0]
    ended_s = new[-1][0]
    ends = [*struck_unix_s[1:], ended_s]
    return Figures(
        ranks=len(logs),
        steps=len(numbers),
        training_s=ended_s - began_s,
        step_s=step_s,
        steps_redone=redone if has_numbers else None,
        rank_steps_missed=sum(len(numbers - {n for n, _ in steps}) for steps in done) if has_numbers else 0,
        costs=tuple(_cost(new, in_order, step_s, start, end) for start, end in zip(struck_unix_s, ends)),
        progress=tuple((unix_s - began_s, number) for unix_s, number in new),
    )


def _numbered(log: RankLog, has_numbers: bool) -> list[tuple[int, float]]:
    """Return number and time of each step. Without numbers, steps count as they come, and steps done again are not told apart."""
    if has_numbers:
        return [(step.number or 0, step.unix_s) for step in log.steps]
    return [(count, step.unix_s) for count, step in enumerate(log.steps, 1)]


def _cost(
    new: Sequence[tuple[float, int]], every: Sequence[tuple[float, int]], step_s: float, start_s: float, end_s: float
) -> RaceFaultCost:
    gap = _longest_gap(new, start_s, end_s)
    if gap is None:
        return RaceFaultCost(0.0, 0.0)
    downtime_s = max(gap[1] - gap[0] - step_s, 0.0)
    still = _longest_gap(every, gap[0], gap[1])
    stall_s = min(max(still[1] - still[0] - step_s, 0.0), downtime_s) if still else downtime_s
    return RaceFaultCost(stall_s, downtime_s - stall_s)


def _longest_gap(steps: Sequence[tuple[float, int]], start_s: float, end_s: float) -> tuple[float, float] | None:
    """Return the longest gap between two neighbours that ends between the two times.

    The gap in which a fault strikes is that fault's gap.
    """
    gaps = [(a[0], b[0]) for a, b in pairwise(steps) if start_s < b[0] <= end_s]
    return max(gaps, key=lambda gap: gap[1] - gap[0], default=None)
