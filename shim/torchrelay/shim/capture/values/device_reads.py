"""Small tensors of a device, read in one transfer: the host waits for each transfer."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager

import torch

from torchrelay.shim.capture.values import small
from torchrelay.shim.tensors.tensor_bytes import on_host


class DeviceReads:
    """What a walk has read ahead, as long as it runs. Nothing writes to tensors meanwhile."""

    def __init__(self) -> None:
        self._held: dict[int, torch.Tensor] = {}

    @contextmanager
    def ahead(self, tensors: Iterable[torch.Tensor]) -> Iterator[None]:
        """Read those of a device in one transfer, for the block."""
        alive = [*tensors]  # so that no other tensor gets the id of one of these
        self._held = _read(alive)
        try:
            yield
        finally:
            self._held = {}

    def take(self, tensor: torch.Tensor) -> small.TensorValue:
        """Return what `small.take` returns."""
        return small.take(tensor, self._held.get(id(tensor)))

    def take_all(self, tensors: Mapping[str, torch.Tensor]) -> dict[str, small.TensorValue]:
        """Return what `small.take` returns, of each."""
        held = self._held | _read(tensor for tensor in tensors.values() if id(tensor) not in self._held)
        return {name: small.take(tensor, held.get(id(tensor))) for name, tensor in tensors.items()}


def _read(tensors: Iterable[torch.Tensor]) -> dict[int, torch.Tensor]:
    """Contents by id. A single one is left out: `small.take` reads it as fast."""
    found = [tensor for tensor in tensors if type(tensor) is torch.Tensor and tensor.is_cuda]
    return dict(zip(map(id, found), on_host([tensor.detach() for tensor in found]))) if len(found) > 1 else {}
