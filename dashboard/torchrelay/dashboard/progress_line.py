"""Steps over time, in bounded memory: however long the run, a few hundred points draw it."""

from __future__ import annotations

POINTS = 600


class ProgressLine:
    """Points (seconds since the epoch, steps done), in their order."""

    def __init__(self, most: int = POINTS) -> None:
        self._most = most
        self._apart_s = 0.0
        self.points: list[tuple[float, int]] = []

    def add(self, time_s: float, boundary: int) -> None:
        """Add the newest point. The point before it is dropped if it is too close to the one before that."""
        kept = self.points
        if len(kept) >= 2 and kept[-1][0] - kept[-2][0] < self._apart_s:
            kept[-1] = (time_s, boundary)
        else:
            kept.append((time_s, boundary))
        if len(kept) > self._most:
            self._thin()

    def go_back(self, time_s: float, boundary: int) -> None:
        """Let the line fall to `boundary`, where all ranks have begun anew."""
        self.points += [(time_s, self.points[-1][1] if self.points else boundary), (time_s, boundary)]

    def _thin(self) -> None:
        """Drop every other point. New points are kept at the distance of the points that stay."""
        first, *middle, last = self.points
        span_s = last[0] - first[0]
        self.points = [first, *middle[1::2], last]
        self._apart_s = 2.0 * span_s / self._most
