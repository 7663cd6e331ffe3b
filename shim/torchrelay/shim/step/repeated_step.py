"""A step that is done again, up to its gate: it must not write to large tensors, since the first time has done so already.

Where torch counts the writes, `undo` has looked before. Through `.data`, and by an all-reduce in place, it does not; but a
step that is done again does again what it did, so it is seen the second time, before the gate lets anything come of it.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch

from torchrelay.protocol.errors import StateMismatchError
from torchrelay.shim.adapters.tensor_data import DataAccess
from torchrelay.shim.capture import small
from torchrelay.shim.capture.host_state import HostState
from torchrelay.shim.tensors.memory_ranges import MemoryRanges
from torchrelay.shim.tensors.tensor_versions import version_of


class DoneAgain:
    """Looks from `begin` to `leave`; does nothing otherwise."""

    def __init__(self) -> None:
        self._access: DataAccess | None = None
        self._tensors: list[torch.Tensor] = []
        self._paths: list[str] = []
        self._memory = MemoryRanges()
        self._aliases: list[tuple[Any, int, list[int]]] = []
        self._written: set[int] = set()
        self._ignored: set[int] = set()

    def looks(self) -> bool:
        """Whether a step is done again, and its gate was not passed yet."""
        return self._access is not None

    def begin(self, state: HostState) -> None:
        """`state`: of the boundary that the step starts at."""
        large = [(path, tensor) for tensor, _, path in state.versions]
        large += [pair for tree, _ in state.tree_versions for pair in tree]
        self._tensors = [tensor for _, tensor in large]  # alive, so that their memory is nobody else's
        self._paths = [path for path, _ in large]
        self._memory = MemoryRanges(self._tensors)
        self._access = DataAccess(self._reached, self._replaced)
        self._access.begin()

    def ignore(self, tensors: Iterable[torch.Tensor]) -> None:
        """From here on these may be written to, since they can be put back. Raises StateMismatchError as `leave` does."""
        if self._access is not None:
            self._check()
            ids = {id(tensor) for tensor in tensors}
            self._ignored |= {number for number, tensor in enumerate(self._tensors) if id(tensor) in ids}

    def leave(self) -> None:
        """Raises StateMismatchError, each time anew, if a large tensor was written to."""
        if self._access is not None:
            self._check()
            self._access.end()
            self._access = None
            self._tensors, self._paths, self._memory = [], [], MemoryRanges()
            self._aliases, self._written, self._ignored = [], set(), set()

    def _check(self) -> None:
        for alias, version, numbers in self._aliases:
            if version_of(alias) != version:
                self._written.update(numbers)
        self._written -= self._ignored
        if self._written:
            written = [self._paths[number] for number in sorted(self._written)]
            raise StateMismatchError(
                f"written to by a step that is done again, past torch's count, before its optimizer step, and larger than "
                f"{small.SMALL_BYTES} bytes: {', '.join(written[:5])}"
            )

    def summed_up(self, tensors: Iterable[torch.Tensor]) -> None:
        """The result of a collective of SUMS_UP is in `tensors`."""
        if self._access is not None:
            for tensor in tensors:
                self._replaced(tensor)

    def _reached(self, tensor: Any, alias: Any) -> None:
        numbers = self._memory.shared(alias)
        if numbers:
            self._aliases.append((alias, version_of(alias), numbers))

    def _replaced(self, tensor: Any) -> None:
        self._written.update(self._memory.shared(tensor))
