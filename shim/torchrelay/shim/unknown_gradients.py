"""Gradients that a joiner has computed without peers: nobody may read them, since they are not the lost rank's.

A joiner that comes in among ranks that finish a step, with tensors of a rank that is through with it, has its own shadow step's
gradients. Most scripts only drop them. One that reads them stops here, before it can do anything with the number.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from torchrelay.protocol.errors import StateMismatchError

_HARMLESS = frozenset(
    {"zero_", "_foreach_zero_", "detach_", "requires_grad_", "__get__", "__set__", "__hash__", "__delete__"}
)
"""What `zero_grad` does, and looking at what a gradient is rather than at its content."""


class UnknownGradients(TorchFunctionMode):
    def __init__(self, gradients: Iterable[torch.Tensor]) -> None:
        super().__init__()
        self._unknown = {id(gradient): gradient for gradient in gradients}

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if func.__name__ not in _HARMLESS and any(id(t) in self._unknown for t in _tensors((args, kwargs))):
            raise StateMismatchError(
                f"the step reads gradients after its optimizer step ({func.__name__}): what a lost rank read there cannot be told"
            )
        return func(*args, **(kwargs or {}))


def _tensors(value: Any) -> Iterable[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, dict):
        for item in value.values():
            yield from _tensors(item)
    elif isinstance(value, list | tuple):
        for item in value:
            yield from _tensors(item)
