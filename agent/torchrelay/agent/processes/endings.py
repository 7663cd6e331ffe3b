"""How processes ended of which nothing else is kept: an order to end one may still be on its way."""

from __future__ import annotations

from torchrelay.protocol.messages import WorkerExited

MOST = 256
"""As many of the latest are known. An order comes within seconds, and a job may run for months."""


class Endings:
    def __init__(self) -> None:
        self._by_worker: dict[str, WorkerExited] = {}

    def add(self, exited: WorkerExited) -> None:
        self._by_worker[exited.worker] = exited
        if len(self._by_worker) > MOST:
            del self._by_worker[next(iter(self._by_worker))]

    def of(self, worker: str) -> WorkerExited | None:
        """None of a process that has not ended, or long ago."""
        return self._by_worker.get(worker)
