"""How much of its steps capture takes from a rank, and when that is too much: a job is never slower for its protection."""

from __future__ import annotations

import statistics
from collections import Counter, deque
from typing import TYPE_CHECKING

from torchrelay.protocol.options.cost_limit import LEAST_STEPS, MOST_LOST_S, MOST_S, MOST_SHARE_PERCENT, WINDOW_STEPS

if TYPE_CHECKING:
    from torchrelay.shim.capture.state.host_state import HostState


class Budget:
    """How much of the latest steps capture took, at the head and before the optimizer step, and how long these steps were.

    Capture is measured in processor time of the training thread, since on a busy machine anything takes longer; steps from head to
    head. `limit_percent`: of a step; 0: there is no limit.
    """

    def __init__(self, limit_percent: float = MOST_SHARE_PERCENT) -> None:
        self.limit_percent = limit_percent
        self._cost_s: deque[float] = deque(maxlen=WINDOW_STEPS)
        self._step_s: deque[float] = deque(maxlen=WINDOW_STEPS)
        self._began_s = 0.0
        self._spent_s = 0.0

    def head(self, now_s: float) -> None:
        """Note that a step is over and the next one begins."""
        if self._began_s:
            self._cost_s.append(self._spent_s)
            self._step_s.append(now_s - self._began_s)
        self._began_s = now_s
        self._spent_s = 0.0

    def spent(self, took_s: float) -> None:
        self._spent_s += took_s

    def interrupted(self) -> None:
        """Leave the step under way out of the budget: it waits for a migration, so its length tells nothing."""
        self._began_s = 0.0

    def shares(self) -> tuple[float, float]:
        """Return capture's share of a step: the median, and what 95 % of steps stay below. 0 where nothing is known yet."""
        found = sorted(cost / step for cost, step in zip(self._cost_s, self._step_s) if step > 0)
        return (statistics.median(found), found[len(found) * 95 // 100]) if found else (0.0, 0.0)

    def exceeded(self) -> bool:
        """Return whether steps are slower for good."""
        steps = len(self._cost_s)
        if not self.limit_percent or steps < LEAST_STEPS:
            return False
        if steps < WINDOW_STEPS and sum(self._cost_s) < MOST_LOST_S:
            return False
        cost_s, step_s = self.medians()
        return cost_s > MOST_S and 100 * cost_s > self.limit_percent * step_s

    def medians(self) -> tuple[float, float]:
        """Return the median seconds of capture in a step, and of a step."""
        return statistics.median(self._cost_s), statistics.median(self._step_s)

    def reason(self, state: HostState | None) -> str:
        """Return why protection is given up. `state`: what was captured last."""
        cost_s, step_s = self.medians()
        return (
            f"capture took {cost_s * 1e3:.0f} ms of a step of {step_s * 1e3:.0f} ms, more than --cost-limit {self.limit_percent:g} "
            f"(percent): training goes on at full speed without protection{_where(state)}"
        )


def _where(state: HostState | None) -> str:
    """Tell where most of the objects that were looked at hang, which a user can change."""
    if state is None or not state.nodes:
        return ""
    root, count = Counter(_root(state, number) for number in range(len(state.nodes))).most_common(1)[0]
    return (
        f". It looks at {len(state.nodes):,} objects, {count:,} of them below {state.path(root) or 'local variables'}"
    )


def _root(state: HostState, number: int) -> int:
    while (parent := state.nodes[number].parent) >= 0:
        number = parent
    return number
