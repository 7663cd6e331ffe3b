"""How much of the processor one job may take. Pure: time is told to it."""

from __future__ import annotations

SHARE = 0.5
"""Of one processor's time, over a while: what a job of thousands of ranks takes is below."""
BURST_S = 1.0
"""What may be taken at once: a migration of a large job must not wait."""
REST_FACTOR = 5.0
LONGEST_REST_S = 1.0
"""Of a job that is called late: each is looked at once a second, whatever the others need."""


def rest_s(late_s: float) -> float:
    """How long a job waits at least that was called so much later than it wanted: the controller falls behind, and would fall
    further behind if all went on looking at the clock as often as each wants to."""
    return min(max(0.0, REST_FACTOR * late_s), LONGEST_REST_S)


class TimeShare:
    """A bucket of time that fills by `share` a second, up to `burst_s`."""

    def __init__(self, share: float = SHARE, burst_s: float = BURST_S) -> None:
        self._share = share
        self._burst_s = burst_s
        self._left_s = burst_s
        self._then_s = 0.0

    def spend(self, took_s: float, now_s: float) -> float:
        """How many seconds whoever has just worked for `took_s` has to wait with going on."""
        self._left_s = min(self._burst_s, self._left_s + (now_s - self._then_s) * self._share) - took_s
        self._then_s = now_s
        return max(0.0, -self._left_s / self._share)
