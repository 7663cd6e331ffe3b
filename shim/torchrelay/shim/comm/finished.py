"""A finished collective and its results: by value, or by reference where they are too large for a record."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from torchrelay.protocol.errors import StateMismatchError, UnsupportedError
from torchrelay.shim.capture.values import small
from torchrelay.shim.tensors.digest import digests
from torchrelay.shim.tensors.tensor_bytes import size_bytes

MAX_RECORDED_BYTES = 4 << 20
"""Results larger than this are not in records. In set-up they are parameters, which state replaces."""


@dataclass(eq=False)
class LargeResults:
    """Results that a new process has itself (a model that all ranks draw alike), or gets over the tensor channel.

    `digests`: of the content, all that is written down. `tensors`: those that hold it, in a process that has it or was given it.
    `is_new`: whether this rank had something else in their place before.
    """

    digests: tuple[str, ...]
    tensors: list[torch.Tensor] | None = None
    is_new: bool = True
    is_copy: bool = False
    """Whether nobody else writes to the tensors."""

    def __reduce__(self) -> tuple[Any, ...]:
        return LargeResults, (self.digests,)

    def size_bytes(self) -> int:
        return sum(map(size_bytes, self.tensors or ()))

    def keep(self) -> None:
        """Keep a copy, whatever the script does with its tensors."""
        if self.tensors is not None and not self.is_copy:
            self.tensors = [t.detach().clone() for t in self.tensors]
            self.is_copy = True

    def are_in(self, tensors: Sequence[torch.Tensor]) -> bool:
        return len(tensors) == len(self.digests) and _digests(tensors) == self.digests

    def put(self, name: str, tensors: list[torch.Tensor]) -> None:
        """Put the results into the tensors of this process's own call. Raises UnsupportedError where no rank has given them."""
        if self.are_in(tensors):
            self.tensors = self.tensors or tensors
            return
        given = self._given(name)
        if len(given) != len(tensors) or any(a.shape != b.shape for a, b in zip(given, tensors)):
            raise StateMismatchError(f"{name}: the recorded result has another shape than this call's")
        with torch.no_grad():
            for tensor, value in zip(tensors, given):
                tensor.data.copy_(value)  # torch counts no write of a collective
        if not self.are_in(tensors):
            raise StateMismatchError(f"{name}: what other ranks have given is not what they had recorded")

    def build(self, name: str) -> list[torch.Tensor]:
        """Return new tensors with the results. Raises UnsupportedError as `put` does."""
        return [tensor.clone() for tensor in self._given(name)]

    def _given(self, name: str) -> list[torch.Tensor]:
        if self.tensors is None:
            raise UnsupportedError(
                f"{name} after the optimizer step: its result is too large to keep, and no rank has it any more"
            )
        return self.tensors


@dataclass(frozen=True)
class FinishedCollective:
    """One finished collective. `results` is None where they were too large to keep."""

    name: str
    group: str
    results: Any

    def size_bytes(self) -> int:
        """Return how much memory it takes to keep the results."""
        if isinstance(self.results, bytes):
            return len(self.results)
        if isinstance(self.results, LargeResults):
            return self.results.size_bytes()
        return sum(len(v.data) for v in self.results or ())


def results_of(tensors: list[torch.Tensor], *, for_others: bool, before: Sequence[torch.Tensor] = ()) -> Any:
    """Return the results as they are recorded. `before`: what was in their place.

    `for_others`: whether another process may ask for them, however large they are.
    """
    if sum(map(size_bytes, tensors)) <= MAX_RECORDED_BYTES:
        return [small.take(t) for t in tensors]
    if not for_others:
        return None
    try:
        found = _digests(tensors)
        return LargeResults(found, tensors, is_new=not before or _digests(before) != found)
    except UnsupportedError:
        return None


def _digests(tensors: Sequence[torch.Tensor]) -> tuple[str, ...]:
    return tuple(digests({str(place): tensor for place, tensor in enumerate(tensors)}).values())
