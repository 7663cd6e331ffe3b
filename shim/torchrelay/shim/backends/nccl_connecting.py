"""Connect a communicator of NCCL so that the wait for a peer that never comes can be given up.

torch holds the communicator's lock for as long as it connects, also where NCCL connects without blocking. To abort, torch takes the
same lock: so nothing can end that wait. The wait is in the connecting itself (torch 2.13) or in the first collective (2.11). So
both are left to a thread, which is left behind where this rank gives the wait up. As long as the thread has nothing on the device's
streams, it holds up nothing. Its communicator is aborted whenever torch lets go of it. A collective on the device is aborted like
any other.

Seen on torch 2.11.0 and 2.13.0 with the imitated GPU of tests/imitated_gpu.
"""

from __future__ import annotations

import threading
from typing import Any

import torch

from torchrelay.shim.backends.nccl_interface import library


class Connecting:
    """The communicators that are being connected."""

    def __init__(self) -> None:
        self._under_way: dict[int, _Attempt] = {}
        self._lock = threading.Lock()

    def connect(self, communicator: Any, device: torch.device) -> None:
        """Return when each member was heard of: else a missing peer would be met only in the middle of a step.

        Raises RuntimeError where that fails, and when the communicator is given up meanwhile.
        """
        attempt = _Attempt(communicator, device, self._lock)
        with self._lock:
            self._under_way[id(communicator)] = attempt
        attempt.start()
        attempt.over.wait()
        with self._lock:
            del self._under_way[id(communicator)]
        if attempt.given_up:
            raise RuntimeError(
                f"torchrelay: Connection closed: a communicator of {library()} was given up while it was connected"
            )
        if attempt.error is not None:
            raise attempt.error
        if attempt.heard != communicator.size():
            raise RuntimeError(f"torchrelay: {library()} connected {attempt.heard} of {communicator.size()} ranks")

    def give_up(self, communicator: Any) -> bool:
        """End the wait for this communicator. Return whether nothing else has to be done about it. For any thread."""
        with self._lock:
            attempt = self._under_way.get(id(communicator))
            if attempt is None or attempt.is_on_device or attempt.over.is_set():
                return False
            attempt.given_up = True
            attempt.over.set()
        return True


class _Attempt(threading.Thread):
    def __init__(self, communicator: Any, device: torch.device, lock: threading.Lock) -> None:
        super().__init__(name="torchrelay-connect", daemon=True)
        self._communicator = communicator
        self._device = device
        self._lock = lock
        self.over = threading.Event()
        self.given_up = self.is_on_device = False
        self.error: RuntimeError | None = None
        self.heard = 0

    def run(self) -> None:
        try:
            with torch.cuda.device(self._device):
                self._hear()
        except RuntimeError as error:
            self.error = error
        finally:
            self.over.set()
        if self.given_up:
            self._communicator.abort()

    def _hear(self) -> None:
        self._communicator.eager_connect_single_device(self._device)
        heard = torch.ones(1, device=self._device)
        work = self._communicator.allreduce([heard])
        with self._lock:
            self.is_on_device = not self.given_up
        if self.is_on_device:
            work.wait()
            self.heard = int(heard.item())
