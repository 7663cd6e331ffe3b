"""Tell with which of some tensors a tensor shares memory, whatever it was made by: a view, `.data`, `detach`."""

from __future__ import annotations

from collections.abc import Iterable

import torch

from torchrelay.shim.adapters.tensors.dtensor import local


class MemoryRanges:
    """The memory of tensors, each with a number. A tensor without memory of its own (sparse, fake) shares none."""

    def __init__(self, tensors: Iterable[torch.Tensor] = ()) -> None:
        self._by_storage: dict[int, list[tuple[int, int, int]]] = {}
        for number, tensor in enumerate(tensors):
            self.add(number, tensor)

    def add(self, number: int, tensor: torch.Tensor) -> None:
        storage, start, end = _range(tensor)
        if end > start:
            self._by_storage.setdefault(storage, []).append((start, end, number))

    def shared(self, tensor: torch.Tensor) -> list[int]:
        storage, start, end = _range(tensor)
        return [n for low, high, n in self._by_storage.get(storage, ()) if start < high and low < end]


def _range(tensor: torch.Tensor) -> tuple[int, int, int]:
    """Return the storage's address, and the first byte and the end of the tensor in it; 0, 0, 0 without plain memory."""
    try:
        part = local(tensor)
        storage = part.untyped_storage().data_ptr()
        if not storage or not part.numel():
            return 0, 0, 0
        extent = int(sum((size - 1) * stride for size, stride in zip(part.shape, part.stride()))) + 1
        start = int(part.storage_offset()) * part.element_size()
    except RuntimeError:
        return 0, 0, 0
    return storage, start, start + extent * part.element_size()
