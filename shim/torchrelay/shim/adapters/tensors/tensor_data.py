"""Who reaches a tensor through its attribute `data`: torch counts no writes to what that gives.

Leans on `data` being an attribute of `torch._C.TensorBase`, which `torch.Tensor` inherits and a property of `torch.Tensor`
hides as long as it is there; dynamo handles `.data` in what it compiles by name. An alias and all that is made from it (views,
`detach`) share a version counter of their own. Seen on torch 2.13.0.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from torchrelay.protocol.errors import UnsupportedError


def check_supported() -> None:
    """Raises UnsupportedError where this torch keeps `data` elsewhere."""
    if "data" in vars(torch.Tensor) or not hasattr(torch._C.TensorBase, "data"):
        raise UnsupportedError(f"torch {torch.__version__} does not keep Tensor.data where it is looked for")


class DataAccess:
    """From `begin` to `end`: `on_get(tensor, alias)` after each access, `on_set(tensor)` before each assignment of other memory.

    `module.to(device)` and `module.float()` assign to each parameter what it has, where it is that already.
    """

    def __init__(self, on_get: Callable[[Any, Any], None], on_set: Callable[[Any], None]) -> None:
        original: Any = torch._C.TensorBase.__dict__["data"]

        def get(tensor: Any) -> Any:
            alias = original.__get__(tensor)
            on_get(tensor, alias)
            return alias

        def put(tensor: Any, value: Any) -> None:
            if not _is_same_memory(tensor, value):
                on_set(tensor)
            original.__set__(tensor, value)

        self._property = property(get, put, doc=original.__doc__)

    def begin(self) -> None:
        setattr(torch.Tensor, "data", self._property)  # noqa: B010 - mypy forbids the assignment

    def end(self) -> None:
        """May be called twice."""
        if vars(torch.Tensor).get("data") is self._property:
            delattr(torch.Tensor, "data")


def _is_same_memory(tensor: torch.Tensor, value: Any) -> bool:
    if not isinstance(value, torch.Tensor) or tensor.layout is not torch.strided or value.layout is not torch.strided:
        return False
    try:
        places = [
            (t.data_ptr(), t.device, t.dtype, t.shape, t.stride(), t.is_neg(), t.is_conj()) for t in (tensor, value)
        ]
    except RuntimeError:  # without memory of its own
        return False
    return places[0] == places[1] and places[0][0] != 0
