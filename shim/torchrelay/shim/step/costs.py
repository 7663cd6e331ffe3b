"""What protection costs on the training thread, measured while the script trains."""

from __future__ import annotations

import math
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torchrelay.shim.capture.values.device_reads import DeviceReads


class Costs:
    """Seconds since the latest `take`. Adding is all that a step pays for."""

    def __init__(self) -> None:
        self.head_s = self.gate_s = 0.0
        self.steps = self.gates = 0
        self.barrier_s = math.inf

    def head(self, took_s: float) -> None:
        self.head_s += took_s
        self.steps += 1

    def gate(self, took_s: float) -> None:
        self.gate_s += took_s
        self.gates += 1

    def barrier(self, took_s: float) -> None:
        """Note a wait at the barrier.

        Only the shortest counts: it comes closest to the barrier's own cost, the rest waits for slow ranks.
        """
        if took_s < self.barrier_s:
            self.barrier_s = took_s

    def take(self) -> tuple[float, float, float]:
        """Return mean seconds of a head and of a gate, and the shortest barrier; then start anew. 0 for what did not happen."""
        head_s = self.head_s / self.steps if self.steps else 0.0
        gate_s = self.gate_s / self.gates if self.gates else 0.0
        barrier_s = self.barrier_s if math.isfinite(self.barrier_s) else 0.0
        self.__init__()  # type: ignore[misc]  # as it was made
        return head_s, gate_s, barrier_s


class OwnWork:
    """Times what the shim does on the training thread, from its creation on, but for its waits for the device."""

    def __init__(self, reads: DeviceReads) -> None:
        self._reads = reads
        self._waited_s = reads.waited_s
        self._waited_cpu_s = reads.waited_cpu_s
        self.started_s = time.perf_counter()
        self._started_cpu_s = time.thread_time()

    def took_s(self) -> float:
        """Return seconds of wall time."""
        return time.perf_counter() - self.started_s - (self._reads.waited_s - self._waited_s)

    def took_cpu_s(self) -> float:
        """Return seconds of processor time of this thread."""
        return time.thread_time() - self._started_cpu_s - (self._reads.waited_cpu_s - self._waited_cpu_s)
