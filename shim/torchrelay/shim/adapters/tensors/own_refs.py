"""Weak references of torchrelay's own to tensors of the script, which torch does not see where it swaps tensors.

`torch.utils.swap_tensors` refuses tensors that have weak references. `Module.to_empty` calls it for parameters that are DTensors,
as scripts do behind `fully_shard` on the meta device. The references stay with their objects, which get another content: their
count of writes is set beyond what either had, so that both count as written.

Leans on `torch.utils` looking up `weakref.getweakrefs` in its own namespace, and on `_unsafe_set_version_counter`. Seen on torch
2.13.0 and 2.14.1. torch before 2.3 swaps nothing.
"""

from __future__ import annotations

import functools
import weakref
from types import SimpleNamespace
from typing import Any, TypeVar

import torch.utils

T = TypeVar("T")


class OwnRef(weakref.ref[T]):
    """A weak reference of torchrelay's own."""

    __slots__ = ()


def _of_others(obj: Any) -> list[Any]:
    return [ref for ref in weakref.getweakrefs(obj) if type(ref) is not OwnRef]


def install() -> None:
    """Let tensors be swapped that have weak references of torchrelay's own alone."""
    swap = getattr(torch.utils, "swap_tensors", None)
    if swap is None or vars(torch.utils).get("weakref") is not weakref:
        return
    seen = SimpleNamespace(**{**vars(weakref), "getweakrefs": _of_others})
    setattr(torch.utils, "weakref", seen)  # noqa: B010 - mypy knows torch's module

    @functools.wraps(swap)
    def swap_tensors(t1: Any, t2: Any) -> None:
        ours = len(_of_others(t1)) < weakref.getweakrefcount(t1) or len(_of_others(t2)) < weakref.getweakrefcount(t2)
        swap(t1, t2)
        if ours:
            _count_as_written(t1, t2)

    torch.utils.swap_tensors = swap_tensors


def _count_as_written(*tensors: torch.Tensor) -> None:
    if any(tensor.is_inference() for tensor in tensors):
        return  # what these hold is compared itself
    beyond = max(tensor._version for tensor in tensors) + 1
    for tensor in tensors:
        torch._C._autograd._unsafe_set_version_counter((tensor,), (beyond,))
