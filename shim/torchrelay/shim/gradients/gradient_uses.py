"""Find out whether a step uses the gradients of the step before, though it drops them before it computes its own.

A norm that is logged is such a use. So gradients that are left over are followed in a few early steps, through every function of
torch that is called, until it is known what has become of them. Nothing is followed once code was compiled: it would be compiled
once more.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Collection, Mapping
from typing import Any

import torch

from torchrelay.shim.adapters import dynamo
from torchrelay.shim.adapters.tensors.following_mode import FollowingMode, is_ours
from torchrelay.shim.adapters.tensors.own_refs import OwnRef
from torchrelay.shim.tensors.memory_ranges import MemoryRanges
from torchrelay.shim.tensors.taint import ABOUT_FORM, tensors_of

_TIMES = 2
"""Each gradient is followed so often to its end: the first step may do what no later one does."""
_STEPS = 16
"""In at most so many steps, all in all, gradients are followed."""
_ABOUT_FORM = ABOUT_FORM | {"__get__", "__set__", "untyped_storage", "_typed_storage", "record_stream"}


class _Uses(FollowingMode):
    def __init__(self, gradients: Mapping[str, torch.Tensor], used: Callable[[str], None]) -> None:
        super().__init__()
        self._paths = [*gradients]
        self._there = [OwnRef(gradient) for gradient in gradients.values()]
        """Where a gradient is gone, another tensor may have its memory."""
        self._memory = MemoryRanges(gradients.values())
        self._used = used
        self.open = set(self._paths)

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if torch.compiler.is_compiling():  # dynamo traces what is below, and could not
            return func(*args, **kwargs)
        result = func(*args, **kwargs)
        name = getattr(func, "__name__", "")
        if self.open and name not in _ABOUT_FORM and not is_ours(sys._getframe(1)):
            numbers = self._numbers_of((args, kwargs))
            if numbers:
                # Making a view of a gradient, or writing to it in place, is no use yet.
                numbers -= self._numbers_of(args[:1] if result is None and name.endswith("_") else result)
            for path in self.open.intersection([self._paths[number] for number in numbers]):
                self.open.discard(path)
                self._used(path)
        return result

    def _numbers_of(self, value: Any) -> set[int]:
        """Return the numbers of the gradients that share memory with the value's tensors."""
        shared = {number for tensor in tensors_of(value) for number in self._memory.shared(tensor)}
        return {number for number in shared if self._there[number]() is not None}


class GradientUses:
    """Follow gradients in early steps. `used` is told the path of each gradient that the script uses."""

    def __init__(self, used: Callable[[str], None]) -> None:
        self._used = used
        self._now: _Uses | None = None
        self._ends: Counter[str] = Counter()
        self._steps = 0

    def begin(self, gradients: Mapping[str, torch.Tensor]) -> None:
        """Follow the step that begins. `gradients`: the gradients that are there, by path."""
        self.end()
        new = {path: gradient for path, gradient in gradients.items() if self._ends[path] < _TIMES}
        if self._now is None and new and self._steps < _STEPS and not dynamo.compilations():
            self._steps += 1
            self._now = _Uses(new, self._used)
            self._now.__enter__()

    def only(self, open_: Collection[str]) -> None:
        """Follow only these gradients: it is known what has become of all others."""
        if self._now is None:
            return
        self._ends.update(self._now.open.difference(open_))
        self._now.open.intersection_update(open_)
        if not self._now.open:
            self._leave()

    def end(self) -> None:
        """Stop following: the step is over."""
        if self._now is not None:
            self._now.open.clear()
            self._leave()

    def _leave(self) -> None:
        if self._now is not None and self._now.is_on():  # else later
            self._now.__exit__(None, None, None)
            self._now = None
