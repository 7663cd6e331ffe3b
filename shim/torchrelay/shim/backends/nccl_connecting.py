"""Connecting a communicator of NCCL so that the wait for a peer that never comes can be given up.

torch holds the communicator's lock for as long as it connects, also where NCCL does so without blocking, and to abort it takes
the same lock: nobody ends that wait. So it is left to a thread, which is left behind where the wait is over for us. Nothing is on
the device's streams by then, so what is left behind holds up nothing; it is aborted whenever torch lets go of it.

Seen on torch 2.13.0 with the imitated GPU of tests/imitated_gpu.
"""

from __future__ import annotations

import threading
from typing import Any

import torch


class Connecting:
    """The communicators that are being connected."""

    def __init__(self) -> None:
        self._under_way: dict[int, _Attempt] = {}
        self._lock = threading.Lock()

    def connect(self, communicator: Any, device: torch.device) -> None:
        """Return when it is connected. Raises RuntimeError where that fails, and when it is given up meanwhile."""
        attempt = _Attempt(communicator, device)
        with self._lock:
            self._under_way[id(communicator)] = attempt
        attempt.start()
        attempt.over.wait()
        with self._lock:
            del self._under_way[id(communicator)]
        if attempt.given_up:
            raise RuntimeError(
                "torchrelay: Connection closed: a communicator of NCCL was given up while it was connected"
            )
        if attempt.error is not None:
            raise attempt.error

    def give_up(self, communicator: Any) -> bool:
        """From any thread: end the wait for this one, if it is being connected. Return whether it was."""
        with self._lock:
            attempt = self._under_way.get(id(communicator))
            if attempt is None or attempt.over.is_set():
                return False
            attempt.given_up = True
            attempt.over.set()
        return True


class _Attempt(threading.Thread):
    def __init__(self, communicator: Any, device: torch.device) -> None:
        super().__init__(name="torchrelay-connect", daemon=True)
        self._communicator, self._device = communicator, device
        self.over = threading.Event()
        self.given_up = False
        self.error: RuntimeError | None = None

    def run(self) -> None:
        try:
            with torch.cuda.device(self._device):
                self._communicator.eager_connect_single_device(self._device)
        except RuntimeError as error:
            self.error = error
        finally:
            self.over.set()
        if self.given_up:
            self._communicator.abort()
