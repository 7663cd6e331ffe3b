"""What a script keeps on its device that no migration carries: each is a gap in the protection, with the line that makes it.

Communicators and processes are exchanged in a migration. A graph of the device that holds collectives goes on with the old
communicators; memory that other processes have mapped stays that of a process which is gone.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum
from types import FrameType

from torchrelay.protocol.messages import Gap
from torchrelay.protocol.names import BARS


class DeviceHold(Enum):
    """What a script keeps on its device, by the kind of the gap."""

    GRAPH = "device-graph"
    SYMMETRIC = "symmetric-memory"
    NVSHMEM = "nvshmem"
    SHARED = "shared-device-memory"


_TEXTS = {
    DeviceHold.GRAPH: "a CUDA graph that holds collectives: it would go on with the communicators that a migration exchanges",
    DeviceHold.SYMMETRIC: "symmetric memory, which other ranks read and write on their own: they would go on with a lost rank's",
    DeviceHold.NVSHMEM: "memory of NVSHMEM, which other ranks read and write on their own: they would go on with a lost rank's",
    DeviceHold.SHARED: "memory of the device that processes share (CUDA IPC): the others would go on with a lost rank's",
}


class DeviceHolds:
    """The first thing of each kind that a script keeps on its device."""

    def __init__(self) -> None:
        self._gaps: dict[DeviceHold, Gap] = {}
        self._called_before: int | None = None
        """How many collectives were called before the graph that is being captured."""
        self._is_called = False

    def __len__(self) -> int:
        return len(self._gaps)

    def gaps(self) -> list[Gap]:
        return [*self._gaps.values()]

    def tell(self, held: DeviceHold, frame: FrameType) -> None:
        """Note the first of a kind. `frame`: of the call that makes it."""
        if held not in self._gaps:
            from torchrelay.shim.observe.origins import call_site  # it imports torch

            file, line = call_site(frame)
            self._gaps[held] = Gap(held.value, BARS, f"{_TEXTS[held]}: no rank can be replaced", file, line)

    def capture_begins(self, called: int) -> None:
        """Note that a capture begins.

        `called`: how many collectives this process has called so far, as the libraries count them.
        """
        self._called_before = called
        self._is_called = False

    def communicates(self) -> None:
        """Note that the script calls a function that communicates: libraries do not count messages."""
        self._is_called = True

    def capture_ends(self, called: Callable[[], int], frame: FrameType) -> None:
        """Note that a capture ends. `frame`: of the call that ends it."""
        before = self._called_before
        self._called_before = None
        if before is not None and (self._is_called or called() != before):
            self.tell(DeviceHold.GRAPH, frame)
