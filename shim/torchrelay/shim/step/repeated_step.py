"""A step that is done again, up to its gate: it must not write to large tensors, since the first time has done so already.

Where torch counts the writes, `undo` has looked before. What it does not count is seen the second time, since the step does again
what it did, before the gate lets anything come of it.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch

from torchrelay.protocol.errors import StateMismatchError
from torchrelay.shim.capture.state.host_state import HostState
from torchrelay.shim.capture.values import small
from torchrelay.shim.step.updates.uncounted_writes import UncountedWrites


class RepeatedStep:
    """Looks from `begin` to `leave`; does nothing otherwise."""

    def __init__(self) -> None:
        self._writes = UncountedWrites()
        self._ignored: dict[int, torch.Tensor] = {}
        self.looks = self._writes.looks
        self.summed_up = self._writes.summed_up

    def begin(self, state: HostState) -> None:
        """Begin to look. `state`: of the boundary that the step starts at."""
        trees = [pair for tree, _ in state.tree_versions for pair in tree]
        self._ignored = {}
        self._writes.begin([*((path, tensor) for tensor, _, path in state.versions), *trees])

    def ignore(self, tensors: Iterable[torch.Tensor]) -> None:
        """Allow writes to these tensors from here on, since they can be put back. Raises StateMismatchError as `leave` does."""
        if self.looks():
            self._check()
            self._ignored.update((id(tensor), tensor) for tensor in tensors)

    def leave(self) -> None:
        """Stop looking. Raises StateMismatchError, each time anew, if a large tensor was written to."""
        if self.looks():
            self._check()
            self._writes.end()
            self._ignored = {}

    def _check(self) -> None:
        written = [path for path, tensor in self._writes.written() if id(tensor) not in self._ignored]
        if written:
            raise StateMismatchError(
                f"written to by a step that is done again, past torch's count, before its optimizer step, and larger than "
                f"{small.SMALL_BYTES} bytes: {', '.join(written[:5])}"
            )
