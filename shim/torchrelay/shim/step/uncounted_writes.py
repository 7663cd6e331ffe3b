"""Writes to large tensors that torch does not count: through `.data`, by assignment to it, and by an all-reduce in place."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import torch

from torchrelay.shim.adapters.dtensor import local
from torchrelay.shim.adapters.tensor_data import DataAccess
from torchrelay.shim.capture import small
from torchrelay.shim.tensors.memory_ranges import MemoryRanges
from torchrelay.shim.tensors.tensor_versions import version_of


class UncountedWrites:
    """Looks from `begin` to `end`; does nothing otherwise."""

    def __init__(self) -> None:
        self._access: DataAccess | None = None
        self._tensors: Sequence[torch.Tensor] = ()
        self._memory: MemoryRanges | None = None
        self._aliases: list[tuple[Any, int, list[int]]] = []
        self._written: set[int] = set()

    def looks(self) -> bool:
        return self._access is not None

    def begin(self, tensors: Sequence[torch.Tensor]) -> None:
        """Keeps them alive, so that their memory is nobody else's. `tensors`: larger than SMALL_BYTES."""
        self.end()
        self._tensors = tensors
        self._access = DataAccess(self._reached, self._replaced)
        self._access.begin()

    def end(self) -> None:
        if self._access is not None:
            self._access.end()
            self._access, self._tensors, self._memory = None, (), None
            self._aliases, self._written = [], set()

    def written(self) -> set[int]:
        """Return which of the tensors were written to, by number."""
        for alias, version, numbers in self._aliases:
            if version_of(alias) != version:
                self._written.update(numbers)
        return self._written

    def summed_up(self, tensors: Iterable[torch.Tensor]) -> None:
        """The result of a collective that sums up is in `tensors`."""
        if self._access is not None:
            for tensor in tensors:
                self._replaced(tensor)

    def _numbers(self, tensor: Any) -> list[int]:
        if self._memory is None:  # most steps never come here
            if _memory_bytes(tensor) <= small.SMALL_BYTES:
                return []
            self._memory = MemoryRanges(self._tensors)
        return self._memory.shared(tensor)

    def _reached(self, tensor: Any, alias: Any) -> None:
        numbers = self._numbers(alias)
        if numbers:
            self._aliases.append((alias, version_of(alias), numbers))

    def _replaced(self, tensor: Any) -> None:
        self._written.update(self._numbers(tensor))


def _memory_bytes(tensor: Any) -> int:
    """Of the whole that it may be a part of; 0 without plain memory."""
    try:
        return int(local(tensor).untyped_storage().nbytes())
    except (RuntimeError, NotImplementedError):
        return 0
