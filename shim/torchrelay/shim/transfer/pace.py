"""How often somebody is told how far a transfer, or a file of tensors, has come."""

from __future__ import annotations

import time
from collections.abc import Callable

Moved = Callable[[int, int], None]
"""Told how many bytes are done, of how many."""
EVERY_S = 1.0
"""What takes less time is not told of at all."""


def nobody(done_bytes: int, total_bytes: int) -> None:
    """Where nobody wants to know."""


class ByteCount:
    """For a loop that has a count and no thread to spare: one look at the clock for each chunk."""

    def __init__(self, moved: Moved, total_bytes: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._moved = moved
        self._total_bytes = total_bytes
        self._clock = clock
        self._done_bytes = 0
        self._next_s = clock() + EVERY_S

    def add(self, size_bytes: int) -> None:
        """So many more are done."""
        self._done_bytes += size_bytes
        now_s = self._clock()
        if now_s >= self._next_s:
            self._next_s = now_s + EVERY_S
            self._moved(self._done_bytes, self._total_bytes)
