"""Whether this rank waits for others on its device: the host does not see it, which waits for the device or has run ahead."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Protocol

from torchrelay.shim.comm.generations.communicators import Communicators

LOOK_S = 0.2
NAME = "torchrelay-device"


class ProgressJournal(Protocol):
    generation: int
    boundary: int
    waiting: int
    count: int

    def device_waits(self, since_ns: int) -> None: ...


class DeviceWaits:
    """A thread that looks at the device of a rank that does not come further, and puts what it sees into the progress record."""

    def __init__(
        self, journal: ProgressJournal, comms: Communicators, stands: Callable[[], None] = lambda: None
    ) -> None:
        """`stands` is called at each look at a rank that has not come further."""
        self._journal = journal
        self._comms = comms
        self._stands = stands
        self._since_ns = 0
        self._seen: tuple[int, ...] = ()

    def start(self) -> None:
        threading.Thread(target=self._watch, name=NAME, daemon=True).start()

    def _watch(self) -> None:
        while True:
            time.sleep(LOOK_S)
            self.look()

    def look(self) -> None:
        """Whoever has moved since the last look waits for nobody, and who waits on the host says so itself."""
        journal = self._journal
        seen = journal.generation, journal.boundary, journal.count
        moved = seen != self._seen
        self._seen = seen
        waits = not moved and not journal.waiting and self._comms.waits_on_device()
        since_ns = (self._since_ns or time.monotonic_ns()) if waits else 0
        if since_ns != self._since_ns:
            self._since_ns = since_ns
            journal.device_waits(since_ns)
        if not moved:
            self._stands()
