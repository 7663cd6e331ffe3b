"""Whether the controller's loop moves: a loop that stands still for longer than this is of no use to any job."""

from __future__ import annotations

import time

STILL_S = 10.0
"""The lease is lost a little later: another one leads then, and this one had better begin anew."""


class Pulse:
    def __init__(self) -> None:
        self._last_s: float | None = None

    def beat(self) -> None:
        self._last_s = time.monotonic()

    def still_s(self) -> float:
        """Since the last beat; 0 before the first one."""
        return time.monotonic() - self._last_s if self._last_s is not None else 0.0
