"""Tells which rank is slow, by the time of each one's steps outside of collectives. Pure.

In a step all ranks wait for the slowest, so the step's time is the same for all. The slow rank is the one that does not wait.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence

WINDOW_S = 10.0
MINIMUM_STEPS = 5
SLACK_S = 1.0
"""What is known of a wait that lasts is as old as the agent's last look."""
MINIMUM_SHARE = 0.1
"""Share of a step: a rank whose own part is longer by less than this costs the job nothing that counts."""
LEAST_SHARE = 0.01
"""Share of a step that peers are taken to need at least for their own part: a ratio of millions tells nothing."""


def _median_without(ordered: Sequence[float], one: float) -> float:
    """Return the median of all values but one."""
    gone = bisect_left(ordered, one)
    count = len(ordered) - 1
    low = (count - 1) // 2
    high = count // 2
    return (ordered[low + (low >= gone)] + ordered[high + (high >= gone)]) / 2


class Stragglers:
    """The ranks of one job. `forget` is called after each migration, when all ranks have other things to do than steps."""

    def __init__(self) -> None:
        self._kept: dict[int, list[tuple[float, int, float]]] = {}

    def forget(self) -> None:
        self._kept.clear()

    def update(self, rank: int, boundary: int, waited_s: float, now_s: float) -> None:
        """Take note of a rank's progress. `waited_s`: since the process began."""
        kept = self._kept.setdefault(rank, [])
        if kept and (boundary < kept[-1][1] or waited_s < kept[-1][2] - SLACK_S):
            kept.clear()
        if not kept or boundary > kept[-1][1]:
            kept.append((now_s, boundary, waited_s))
        while len(kept) > 2 and now_s - kept[1][0] >= WINDOW_S and kept[-1][1] - kept[1][1] >= MINIMUM_STEPS:
            del kept[0]

    def ratios(self, world_size: int) -> dict[int, float]:
        """Return, for each rank, its own step time relative to its peers' median; empty before all have done enough steps."""
        own: dict[int, float] = {}
        step_s = 0.0
        for rank, kept in self._kept.items():
            steps = kept[-1][1] - kept[0][1]
            if steps >= MINIMUM_STEPS:
                took_s = kept[-1][0] - kept[0][0]
                own[rank] = max(took_s - (kept[-1][2] - kept[0][2]), 0.0) / steps
                step_s = max(step_s, took_s / steps)
        if len(own) < max(world_size, 2):
            return {}
        found = {}
        ordered = sorted(own.values())
        for rank, mine_s in own.items():
            peers_s = _median_without(ordered, mine_s)
            ratio = mine_s / max(peers_s, LEAST_SHARE * step_s, 1e-6)
            counts = mine_s - peers_s >= MINIMUM_SHARE * step_s
            found[rank] = ratio if counts else min(ratio, 1.0)
        return found
