"""A step that is done again, up to its gate: it must not write to large tensors, since the first time has done so already.

Where torch counts the writes, `undo` has looked before. Past its counts (`uncounted_writes`) nobody may have looked the first time;
but a step that is done again does again what it did, so it is seen the second time, before the gate lets anything come of it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch

from torchrelay.protocol.errors import StateMismatchError
from torchrelay.shim.capture import small
from torchrelay.shim.capture.host_state import HostState
from torchrelay.shim.step.uncounted_writes import UncountedWrites


class DoneAgain:
    """Looks from `begin` to `leave`; does nothing otherwise."""

    def __init__(self) -> None:
        self._writes = UncountedWrites()
        self._tensors: list[torch.Tensor] = []
        self._paths: list[str] = []
        self._ignored: set[int] = set()

    def looks(self) -> bool:
        """Whether a step is done again, and its gate was not passed yet."""
        return self._writes.looks()

    def begin(self, state: HostState) -> None:
        """`state`: of the boundary that the step starts at."""
        large = [(path, tensor) for tensor, _, path in state.versions]
        large += [pair for tree, _ in state.tree_versions for pair in tree]
        self._tensors = [tensor for _, tensor in large]
        self._paths = [path for path, _ in large]
        self._ignored = set()
        self._writes.begin(self._tensors)

    def ignore(self, tensors: Iterable[torch.Tensor]) -> None:
        """From here on these may be written to, since they can be put back. Raises StateMismatchError as `leave` does."""
        if self.looks():
            self._check()
            ids = {id(tensor) for tensor in tensors}
            self._ignored |= {number for number, tensor in enumerate(self._tensors) if id(tensor) in ids}

    def summed_up(self, tensors: Sequence[torch.Tensor]) -> None:
        self._writes.summed_up(tensors)

    def leave(self) -> None:
        """Raises StateMismatchError, each time anew, if a large tensor was written to."""
        if self.looks():
            self._check()
            self._writes.end()
            self._tensors, self._paths = [], []

    def _check(self) -> None:
        found = self._writes.written() - self._ignored
        if found:
            written = [self._paths[number] for number in sorted(found)]
            raise StateMismatchError(
                f"written to by a step that is done again, past torch's count, before its optimizer step, and larger than "
                f"{small.SMALL_BYTES} bytes: {', '.join(written[:5])}"
            )
