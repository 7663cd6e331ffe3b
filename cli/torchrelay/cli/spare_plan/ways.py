"""Ways to answer a failure, each played against the same trace. Pure.

Every way is counted alike: what a job of its full size would have done in the time that training really went forward.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import Enum

from torchrelay.cli.spare_plan.causes import CAUSES
from torchrelay.cli.spare_plan.trace import HOUR_S, ClusterSite, DrawnFailure


class Way(str, Enum):
    TORCHRELAY = "torchrelay"
    """A spare takes over the rank: the step in flight is done again, or none after a notice."""
    CHECKPOINT = "checkpoint and restart"
    """All start anew from the newest checkpoint, with a spare in place of what is gone."""
    DROP = "drop a replica group"
    """The others go on without the group, until it is whole again."""
    PREEMPT = "torchrelay, pre-empting"
    """No spare stands idle: what is lost is taken from jobs of lower priority."""


@dataclass(frozen=True)
class WayCosts:
    """Seconds, all of them; `group_gpus`: of a replica group. `checkpoint_every_s` None: the best interval by Young's formula,
    the square root of twice the time of a checkpoint times the mean time between failures (CACM 17(9), 1974).
    """

    step_s: float = 10.0
    migrate_s: float = 10.0
    """From the loss of a rank until training goes on at its step, beside the step that is done again."""
    planned_s: float = 5.0
    """The pause of a planned move."""
    restart_s: float = 600.0
    """Until all processes train again from a checkpoint, beside the work that is done again."""
    checkpoint_s: float = 30.0
    """For which training stands at each checkpoint."""
    checkpoint_every_s: float | None = None
    drop_s: float = 5.0
    """Until the others go on without a group."""
    rejoin_s: float = 300.0
    """Until a group that is whole again takes part."""
    preempt_s: float = 60.0
    """Until devices are taken from another job."""
    group_gpus: int = 64


@dataclass
class PlayedTrace:
    """What came of a trace. `useful_s`: in seconds of the whole job. `waited_s`: how long it stood because a device was missing."""

    way: Way
    spares: int
    horizon_s: float
    gpus: int
    useful_s: float = 0.0
    waited_s: float = 0.0
    lost_s: float = 0.0
    """Spent on work that was done again, on restarts and pauses."""
    taken_gpu_s: float = 0.0
    """From jobs of lower priority."""

    @property
    def effective(self) -> float:
        """Return the share of the time in which the job went forward."""
        return self.useful_s / self.horizon_s

    @property
    def goodput(self) -> float:
        """Return useful GPU-time by all paid GPU-time. Spares, and GPUs that were taken from others, are paid too."""
        paid = (self.gpus + self.spares) * self.horizon_s + self.taken_gpu_s
        return self.useful_s * self.gpus / paid


@dataclass
class _Devices:
    """GPUs that stand by, and those that come back from repair. `free` below 0: so many are waited for."""

    free: int
    repairs: list[tuple[float, int]] = field(default_factory=list)

    def come_back(self, now_s: float) -> None:
        while self.repairs and self.repairs[0][0] <= now_s:
            self.free += heapq.heappop(self.repairs)[1]

    def exchange(self, failure: DrawnFailure, now_s: float) -> float:
        """Replace the GPUs that are gone, and return when the new ones are there. The old ones come back from repair."""
        if not failure.gpus:
            return now_s
        heapq.heappush(self.repairs, (now_s + failure.repair_s, failure.gpus))
        self.free -= failure.gpus
        there = self.free
        ready_s = now_s
        for back_s, count in sorted(self.repairs):
            if there >= 0:
                break
            there = there + count
            ready_s = back_s
        return ready_s


def checkpoint_interval_s(way: Way, site: ClusterSite, costs: WayCosts) -> float:
    """Return the seconds of training between two checkpoints: the rarer a way needs one, the longer."""
    if costs.checkpoint_every_s is not None:
        return costs.checkpoint_every_s
    between_s = site.hours_per_failure / site.gpus * HOUR_S
    if way is not Way.CHECKPOINT:
        between_s *= sum(c.count for c in CAUSES) / sum(c.count for c in CAUSES if c.is_script)
    return max(math.sqrt(2 * costs.checkpoint_s * between_s), costs.checkpoint_s)


def play(
    way: Way, spares: int, trace: Sequence[DrawnFailure], site: ClusterSite, costs: WayCosts, horizon_s: float
) -> PlayedTrace:
    """Return what came of the trace with `spares` GPUs that stand by."""
    game = _Game(way, spares, site, costs, horizon_s)
    for failure in trace:
        game.train_until(failure.at_s)
        if game.now_s < horizon_s:
            game.answer(failure)
    game.train_until(horizon_s)
    return game.outcome


class _Game:
    def __init__(self, way: Way, spares: int, site: ClusterSite, costs: WayCosts, horizon_s: float) -> None:
        self.outcome = PlayedTrace(way, spares, horizon_s, site.gpus)
        self.now_s = 0.0
        self._way = way
        self._costs = costs
        self._horizon_s = horizon_s
        self._pool = _Devices(spares)
        self._groups = max(1, site.gpus // costs.group_gpus) if way is Way.DROP else 1
        self._away: list[float] = []
        """When each group that is away takes part again."""
        self._every_s = checkpoint_interval_s(way, site, costs)
        self._saves = costs.checkpoint_s / (self._every_s + costs.checkpoint_s)
        self._unsaved_s = 0.0

    def train_until(self, until_s: float) -> None:
        """Train until then. Time that has passed already is skipped."""
        until_s = min(until_s, self._horizon_s)
        while self.now_s < until_s:
            self._away = sorted(back_s for back_s in self._away if back_s > self.now_s)
            next_s = min([until_s, *self._away[:1]])
            share = max(0, self._groups - len(self._away)) / self._groups
            useful_s = (next_s - self.now_s) * share * (1 - self._saves)
            self.outcome.useful_s += useful_s
            self.outcome.waited_s += (next_s - self.now_s) * (1 - share)
            self.outcome.lost_s += (next_s - self.now_s) * share * self._saves
            self._unsaved_s = (self._unsaved_s + useful_s) % self._every_s
            self.now_s = next_s

    def answer(self, failure: DrawnFailure) -> None:
        self._pool.come_back(self.now_s)
        ready_s = self._take(failure)
        if failure.cause.is_script or self._way is Way.CHECKPOINT:
            self._wait_until(ready_s)
            self._pause(self._costs.restart_s, self._unsaved_s)
            self._unsaved_s = 0.0
        elif self._way is Way.DROP:
            self._pause(self._costs.drop_s, 0.0)
            hit = max(1, -(-failure.gpus // self._costs.group_gpus))
            self._away += [ready_s + self._costs.rejoin_s] * min(hit, max(0, self._groups - len(self._away)))
        elif failure.cause.is_announced:
            self._wait_until(ready_s)
            self._pause(self._costs.planned_s, 0.0)  # what it moves to is found while the ranks train
        else:
            self._wait_until(ready_s)
            taken_s = self._costs.preempt_s if self._way is Way.PREEMPT and failure.gpus else 0.0
            self._pause(self._costs.migrate_s + taken_s, self._costs.step_s)

    def _take(self, failure: DrawnFailure) -> float:
        """Return when there are devices in place of those that are gone."""
        if self._way is Way.PREEMPT:
            left_s = self._horizon_s - self.now_s
            self.outcome.taken_gpu_s += failure.gpus * min(failure.repair_s, left_s)
            return self.now_s
        return self._pool.exchange(failure, self.now_s)

    def _wait_until(self, ready_s: float) -> None:
        ready_s = min(ready_s, self._horizon_s)
        self.outcome.waited_s += ready_s - self.now_s
        self.now_s = ready_s

    def _pause(self, pause_s: float, again_s: float) -> None:
        again_s = min(again_s, self.outcome.useful_s)
        pause_s = min(pause_s, self._horizon_s - self.now_s)
        self.outcome.useful_s -= again_s
        self.outcome.lost_s += pause_s + again_s
        self.now_s += pause_s
