"""Read small tensors of a device for walks. Most of them are read in one transfer, since the host waits for each."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager

import torch

from torchrelay.shim.adapters.tensors.storages import unseen
from torchrelay.shim.capture.values import small
from torchrelay.shim.tensors.tensor_bytes import await_writes, contents


class DeviceReads:
    """Do all that walks read of a device, so that it is known how long they have waited for it."""

    def __init__(self) -> None:
        self._held: dict[int, bytes] = {}
        self.waited_s = self.waited_cpu_s = 0.0
        """Until the device had done what was queued before: wall time, and processor time of this thread.

        This wait costs nothing, the device works meanwhile. But CUDA waits with the processor busy.
        """

    @contextmanager
    def ahead(self, tensors: Iterable[torch.Tensor]) -> Iterator[None]:
        """Read the tensors of each device in one transfer.

        The result holds as long as the block runs: nothing may write to them.
        """
        alive = [*tensors]  # so that no other tensor gets the id of one of these
        self._held = self._read(alive)
        try:
            yield
        finally:
            self._held = {}

    def take(self, tensor: torch.Tensor) -> small.TensorValue:
        """Return what `small.take` returns."""
        return small.take(tensor, self._of(tensor))

    def take_if_small(self, tensor: torch.Tensor, limit_bytes: int) -> small.TensorValue | None:
        """Return what `small.take_if_small` returns."""
        return small.take_if_small(tensor, limit_bytes, self._of(tensor))

    def take_all(self, tensors: Mapping[str, torch.Tensor]) -> dict[str, small.TensorValue]:
        """Return what `small.take` returns, for each tensor."""
        held = self._held | self._read(tensor for tensor in tensors.values() if id(tensor) not in self._held)
        return {name: small.take(tensor, held.get(id(tensor))) for name, tensor in tensors.items()}

    def _of(self, tensor: torch.Tensor) -> bytes | None:
        held = self._held.get(id(tensor))
        if held is None:
            with unseen():
                device = tensor.device if tensor.is_cuda else None
            if device is not None:
                self._wait(device)
        return held

    def _read(self, tensors: Iterable[torch.Tensor]) -> dict[int, bytes]:
        found = [tensor for tensor in tensors if type(tensor) is torch.Tensor and tensor.is_cuda]
        if not found:
            return {}
        for device in {tensor.device for tensor in found}:
            self._wait(device)
        return dict(zip(map(id, found), contents(found)))

    def _wait(self, device: torch.device) -> None:
        started_s = time.perf_counter()
        started_cpu_s = time.thread_time()
        await_writes(device)
        self.waited_s += time.perf_counter() - started_s
        self.waited_cpu_s += time.thread_time() - started_cpu_s
