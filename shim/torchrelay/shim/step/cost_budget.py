"""How much of its steps capture takes from a rank, and when that is too much: a job is never slower for its protection."""

from __future__ import annotations

import statistics
from collections import Counter, deque
from typing import TYPE_CHECKING

from torchrelay.protocol.options.cost_limit import LEAST_STEPS, MOST_LOST_S, MOST_S, MOST_SHARE_PERCENT, WINDOW_STEPS

if TYPE_CHECKING:
    from torchrelay.shim.capture.state.host_state import HostState


class Budget:
    """Of the latest steps: what capture took at the head and before the optimizer step, and how long they were.

    Capture is measured in processor time of the training thread, since on a busy machine anything takes longer; steps from head to
    head. `limit_percent`: of a step; 0: there is none.
    """

    def __init__(self, limit_percent: float = MOST_SHARE_PERCENT) -> None:
        self.limit_percent = limit_percent
        self._cost_s: deque[float] = deque(maxlen=WINDOW_STEPS)
        self._step_s: deque[float] = deque(maxlen=WINDOW_STEPS)
        self._began_s = 0.0
        self._spent_s = 0.0

    def head(self, now_s: float) -> None:
        """A step is over, and the next one begins."""
        if self._began_s:
            self._cost_s.append(self._spent_s)
            self._step_s.append(now_s - self._began_s)
        self._began_s, self._spent_s = now_s, 0.0

    def spent(self, took_s: float) -> None:
        self._spent_s += took_s

    def interrupted(self) -> None:
        """The step that is under way waits for a migration: it tells nothing."""
        self._began_s = 0.0

    def shares(self) -> tuple[float, float]:
        """Of capture in a step: median, and what 95 % of steps stay below. 0 where nothing is known yet."""
        found = sorted(cost / step for cost, step in zip(self._cost_s, self._step_s) if step > 0)
        return (statistics.median(found), found[len(found) * 95 // 100]) if found else (0.0, 0.0)

    def exceeded(self) -> bool:
        """Whether steps are slower for good."""
        steps = len(self._cost_s)
        if not self.limit_percent or steps < LEAST_STEPS:
            return False
        if steps < WINDOW_STEPS and sum(self._cost_s) < MOST_LOST_S:
            return False
        cost_s, step_s = self.medians()
        return cost_s > MOST_S and 100 * cost_s > self.limit_percent * step_s

    def medians(self) -> tuple[float, float]:
        """Seconds of capture in a step, and of a step."""
        return statistics.median(self._cost_s), statistics.median(self._step_s)

    def reason(self, state: HostState | None) -> str:
        """Why protection is given up. `state`: what was captured last."""
        cost_s, step_s = self.medians()
        return (
            f"capture took {cost_s * 1e3:.0f} ms of a step of {step_s * 1e3:.0f} ms, more than --cost-limit {self.limit_percent:g} "
            f"(percent): training goes on at full speed without protection{_where(state)}"
        )


def _where(state: HostState | None) -> str:
    """Where most of what was looked at hangs: that is what a user can change."""
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
