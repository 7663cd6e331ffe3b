"""How late the event loop comes to what is due: the time in which it serves nothing, for whatever reason."""

from __future__ import annotations

import asyncio
import time

from torchrelay.protocol.metrics.samples import Histogram, Sample
from torchrelay.protocol.metrics.table import LAG_S, LOOP_HELD_UP, LOOP_LAG

EVERY_S = 0.5


class LoopWatch:
    """Watches the event loop that runs where it is made, until it is closed. Other threads may call `held_up_s`."""

    def __init__(self) -> None:
        self._lags = Histogram(LAG_S)
        self._loop = asyncio.get_running_loop()
        self._due_s = time.monotonic() + EVERY_S
        self._timer = self._loop.call_later(EVERY_S, self._beat)

    def close(self) -> None:
        """Stop watching. To be called in the loop."""
        self._timer.cancel()

    def held_up_s(self) -> float:
        """Return for how long a beat has been due; 0 while none is."""
        return max(time.monotonic() - self._due_s, 0.0)

    def samples(self) -> list[Sample]:
        """Return the watch's samples. To be called in the loop, which is therefore not held up."""
        return [Sample(LOOP_LAG, (), self._lags), Sample(LOOP_HELD_UP, (), 0.0)]

    def _beat(self) -> None:
        self._lags.observe(self.held_up_s())
        self._due_s = time.monotonic() + EVERY_S
        self._timer = self._loop.call_later(EVERY_S, self._beat)
