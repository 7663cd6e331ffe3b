"""Tensors that get their shape in their first use, and torch's modules that have some.

Leans on `torch.nn.parameter` and on what LazyModuleMixin does with itself behind its first forward pass: it takes away two hooks
and the attributes that hold them, and becomes another class. Seen on torch 2.13.0.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch.nn.modules.lazy import LazyModuleMixin
from torch.nn.parameter import UninitializedBuffer, UninitializedParameter
from torch.nn.parameter import is_lazy as _is_lazy

_HOOKS = ("_initialize_hook", "_load_hook")


def is_lazy(tensor: Any) -> bool:
    """Return whether a tensor has no shape yet."""
    return bool(_is_lazy(tensor))


def make(dtype: torch.dtype, device: Any, requires_grad: bool, *, parameter: bool) -> torch.Tensor:
    """Return a tensor without a shape."""
    made: Any = UninitializedParameter if parameter else UninitializedBuffer
    return made(requires_grad=requires_grad, device=device, dtype=dtype)  # type: ignore[no-any-return]


def become(modules: Iterable[torch.nn.Module]) -> None:
    """Let modules be what they become in their first forward pass. For those that have been given all they would make there."""
    for module in modules:
        if not isinstance(module, LazyModuleMixin) or not all(name in module.__dict__ for name in _HOOKS):
            continue
        if any(map(is_lazy, (*module._parameters.values(), *module._buffers.values()))):
            continue
        for name in _HOOKS:
            module.__dict__.pop(name).remove()
        if module.cls_to_become is not None:
            module.__class__ = module.cls_to_become
