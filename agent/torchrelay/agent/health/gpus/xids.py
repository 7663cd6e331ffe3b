"""An XID comes twice: as an event of the driver, and as a line of the kernel's log, which alone has the details."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from torchrelay.protocol.messages import HealthSignal

HOLD_S = 0.3
"""The driver's event waits so long for its line; both come within some milliseconds."""
SAME_S = 2.0
EXPORTER_LAG_S = 90.0
"""A dcgm-exporter looks every 30 s by default, and is looked at now and then."""


class XidMerger:
    """`tell` gets each XID once. `has_kernel_log`: whether a line can be expected at all."""

    def __init__(self, tell: Callable[[HealthSignal], None]) -> None:
        self._tell = tell
        self._told: dict[tuple[str, int], float] = {}
        self.has_kernel_log = False

    def from_kernel(self, signal: HealthSignal) -> None:
        self._told[signal.device, signal.code] = asyncio.get_running_loop().time()
        self._tell(signal)

    def from_driver(self, signal: HealthSignal) -> None:
        if self.has_kernel_log:
            asyncio.get_running_loop().call_later(HOLD_S, self._release, signal)
        else:
            self._release(signal)

    def from_exporter(self, signal: HealthSignal) -> None:
        """Comes late, and only counts if nobody else has seen it."""
        self._release(signal, EXPORTER_LAG_S)

    def _release(self, signal: HealthSignal, same_s: float = SAME_S) -> None:
        now_s = asyncio.get_running_loop().time()
        last_s = self._told.get((signal.device, signal.code))
        if last_s is None or now_s - last_s > same_s:
            self._told[signal.device, signal.code] = now_s
            self._tell(signal)
