"""Writes to tensors that torch does not count: through `.data`, by assignment to it, and by an all-reduce in place."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch

from torchrelay.shim.adapters.tensors.tensor_data import DataAccess
from torchrelay.shim.tensors.memory_ranges import MemoryRanges
from torchrelay.shim.tensors.tensor_versions import version_of


class UncountedWrites:
    """Looks from `begin` to `end`; does nothing otherwise."""

    def __init__(self) -> None:
        self._access: DataAccess | None = None
        self._tensors: list[torch.Tensor] = []
        self._paths: list[str] = []
        self._memory: MemoryRanges | None = None
        """Made when it is asked for: most steps write past torch's counts nowhere, and thousands of tensors take their time."""
        self._aliases: list[tuple[Any, int, list[int]]] = []
        self._written: set[int] = set()

    def looks(self) -> bool:
        return self._access is not None

    def begin(self, tensors: Iterable[tuple[str, torch.Tensor]]) -> None:
        """Begin to look. `tensors`: the ones to watch, each with its path."""
        self.end()
        watched = list(tensors)
        self._paths = [path for path, _ in watched]
        self._tensors = [tensor for _, tensor in watched]  # alive, so that their memory is nobody else's
        self._access = DataAccess(self._reached, self._replaced)
        self._access.begin()

    def written(self) -> list[tuple[str, torch.Tensor]]:
        """Return path and tensor of each tensor that was written to since `begin`."""
        for alias, version, numbers in self._aliases:
            if version_of(alias) != version:
                self._written.update(numbers)
        return [(self._paths[number], self._tensors[number]) for number in sorted(self._written)]

    def end(self) -> None:
        if self._access is not None:
            self._access.end()
            self._access = None
            self._tensors = []
            self._paths = []
            self._memory = None
            self._aliases = []
            self._written = set()

    def summed_up(self, tensors: Iterable[torch.Tensor]) -> None:
        """Note that the result of a collective of SUMS_UP is in `tensors`."""
        if self._access is not None:
            for tensor in tensors:
                self._replaced(tensor)

    def _reached(self, tensor: Any, alias: Any) -> None:
        numbers = self._shared(alias)
        if numbers:
            self._aliases.append((alias, version_of(alias), numbers))

    def _replaced(self, tensor: Any) -> None:
        self._written.update(self._shared(tensor))

    def _shared(self, tensor: Any) -> list[int]:
        if self._memory is None:
            self._memory = MemoryRanges(self._tensors)
        return self._memory.shared(tensor)
