"""Tell of accesses to a tensor's attribute `data`: torch counts no writes to the alias that it returns.

Leans on `data` being an attribute of `torch._C.TensorBase`, which `torch.Tensor` inherits and a property of `torch.Tensor` hides as
long as it is there. Dynamo handles `.data` by name in what it compiles. An alias and all that is made from it (views, `detach`)
share a version counter of their own. Seen on torch 2.13.0.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from torchrelay.protocol.errors import UnsupportedError
from torchrelay.shim.adapters.tensors.lazy_modules import is_lazy


def check_supported() -> None:
    """Raise UnsupportedError where this torch keeps `data` elsewhere."""
    if "data" in vars(torch.Tensor) or not hasattr(torch._C.TensorBase, "data"):
        raise UnsupportedError(f"torch {torch.__version__} does not keep Tensor.data where it is looked for")


class DataAccess:
    """Call `on_get(tensor, alias)` after each access, and `on_set(tensor)` before other memory is assigned, from `begin` to `end`.

    Not for a tensor that gets its shape in this way: it had no memory.

    `module.to(device)` and `module.float()` assign to each parameter what it has, where it is on that device or of that type
    already.
    """

    def __init__(self, on_get: Callable[[Any, Any], None], on_set: Callable[[Any], None]) -> None:
        original: Any = torch._C.TensorBase.__dict__["data"]

        def get(tensor: Any) -> Any:
            alias = original.__get__(tensor)
            on_get(tensor, alias)
            return alias

        def put(tensor: Any, value: Any) -> None:
            if not (is_lazy(tensor) or _is_same_memory(tensor, value)):
                on_set(tensor)
            original.__set__(tensor, value)

        self._property = property(get, put, doc=original.__doc__)

    def begin(self) -> None:
        setattr(torch.Tensor, "data", self._property)  # noqa: B010 - mypy forbids the assignment

    def end(self) -> None:
        """End the calls. May be called twice."""
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
