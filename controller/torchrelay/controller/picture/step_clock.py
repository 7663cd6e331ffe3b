"""How long a step of the job takes."""

from __future__ import annotations

import bisect
from collections import deque

STEPS_REMEMBERED = 64


class StepClock:
    """Measures steps, from when the slowest rank reached which boundary."""

    def __init__(self) -> None:
        self._last: tuple[float, int] | None = None
        self._steps: deque[tuple[float, int, float]] = deque()
        self._ordered: list[float] = []
        """The time that one step took, of the same steps, in order: it is asked for at every tick."""

    def reached(self, boundary: int, now_s: float) -> None:
        if boundary < 0:
            return
        if self._last is not None and boundary > self._last[1]:
            self._add(now_s, boundary - self._last[1], now_s - self._last[0])
        if self._last is None or boundary > self._last[1]:
            self._last = (now_s, boundary)

    def _add(self, now_s: float, steps: int, took_s: float) -> None:
        self._steps.append((now_s, steps, took_s))
        bisect.insort(self._ordered, took_s / steps)
        if len(self._steps) > STEPS_REMEMBERED:
            _, steps, took_s = self._steps.popleft()
            del self._ordered[bisect.bisect_left(self._ordered, took_s / steps)]

    def go_back(self) -> None:
        """Take note that the next boundary may be no later than the last one."""
        self._last = None

    @property
    def median_step_s(self) -> float:
        """The median time of a step; 0 before two boundaries have been seen."""
        if not (ordered := self._ordered):
            return 0.0
        middle = len(ordered) // 2
        return ordered[middle] if len(ordered) % 2 else (ordered[middle - 1] + ordered[middle]) / 2

    def steps_per_s(self, now_s: float, window_s: float = 10.0) -> float:
        recent = [s for s in self._steps if now_s - s[0] <= window_s]
        took_s = sum(took for _, _, took in recent)
        return sum(steps for _, steps, _ in recent) / took_s if took_s > 0 else 0.0
