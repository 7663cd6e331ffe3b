"""Wrap functional collectives: DTensors communicate by them, and frameworks for their metrics.

They return a new tensor, and fail where it is first looked at; `complete` looks at it at once. torch.compile traces the originals.
Leans on `torch.distributed._functional_collectives` (`_resolve_group_name`, and the functions named here, of which the tensor is
the first parameter). Seen on torch 2.13.0; a name that a torch lacks is left out.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from types import ModuleType
from typing import Any

import torch

from torchrelay.shim.adapters.tensors.dtensor import waited_for

_GROUP_PLACE = {
    "all_reduce": 2,
    "broadcast": 2,
    "all_gather_single": 2,
    "all_gather_tensor": 2,
    "reduce_scatter_single": 3,
    "reduce_scatter_tensor": 3,
    "all_to_all_single": 3,
}
NAMES = tuple(_GROUP_PLACE)
WAIT = "wait_tensor"
Around = Callable[[str, Callable[..., Any], tuple[Any, ...], dict[str, Any]], Any]


def group_name(module: ModuleType, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> str:
    group = kwargs["group"] if "group" in kwargs else args[_GROUP_PLACE[name]]
    return str(module._resolve_group_name(group, kwargs.get("tag", "")))


def complete(result: torch.Tensor) -> torch.Tensor:
    """Wait for the result and return it. Raises RuntimeError where the communication failed."""
    return waited_for(result)


def wrap(module: ModuleType, around: Around) -> None:
    """Call `around(name, original, args, kwargs)` in place of each functional collective, and of `WAIT`.

    Compilers get the originals.
    """
    for name in (*NAMES, WAIT):
        original = getattr(module, name, None)
        if original is not None:
            setattr(module, name, _wrapper(name, original, around))


def _wrapper(name: str, original: Callable[..., Any], around: Around) -> Callable[..., Any]:
    @functools.wraps(original)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        if torch.compiler.is_compiling():
            return original(*args, **kwargs)
        return around(name, original, args, kwargs)

    return wrapper
