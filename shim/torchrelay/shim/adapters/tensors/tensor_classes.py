"""Turn tensors of the script's own classes into plain tensors in the same memory, and back.

Leans on `torch._C.DisableTorchFunctionSubclass`, `Tensor.as_subclass`, `Tensor._make_subclass`, and on `__torch_dispatch__` being
in the class whose tensors hold others in place of memory. Seen on torch 2.13.0. The class itself is asked nothing.
"""

from __future__ import annotations

from typing import Any

import torch

_PLAIN = (torch.Tensor, torch.nn.Parameter)


_known: dict[type, bool] = {}


def has_memory(cls: type) -> bool:
    """Return whether a class of tensors adds attributes and functions alone: its tensors have memory as plain ones have."""
    known = _known.get(cls)
    if known is None:
        derived = cls.__mro__[: cls.__mro__.index(torch.Tensor)]
        known = _known[cls] = not any("__torch_dispatch__" in vars(base) for base in derived)
    return known


def is_of_own_class(tensor: Any) -> bool:
    """Return whether it is of a class of the script's, with memory of its own, and no parameter."""
    cls = type(tensor)
    return cls not in _PLAIN and not isinstance(tensor, torch.nn.Parameter) and has_memory(cls)


def plain(tensor: torch.Tensor) -> torch.Tensor:
    """Return a tensor of a class with memory as a plain tensor in the same memory; any other tensor as it is."""
    if not is_of_own_class(tensor):
        return tensor
    with torch._C.DisableTorchFunctionSubclass():
        return tensor.as_subclass(torch.Tensor)


def is_leaf(tensor: torch.Tensor) -> bool:
    """Return whether gradients end in the tensor."""
    with torch._C.DisableTorchFunctionSubclass():
        return tensor.requires_grad and not has_graph(tensor)


def has_graph(tensor: torch.Tensor) -> bool:
    """Return whether a backward goes through the tensor.

    Torch raises where it is asked this of a view whose base was written to since, as parameters are that FullyShardedDataParallel
    makes of a flat one.
    """
    try:
        return tensor.grad_fn is not None
    except RuntimeError:
        return True


def of_class(tensor: torch.Tensor, cls: type[torch.Tensor]) -> torch.Tensor:
    """Return a tensor of that class, without attributes, in the memory of a plain one."""
    with torch._C.DisableTorchFunctionSubclass():
        made: torch.Tensor = torch.Tensor._make_subclass(cls, tensor.detach(), tensor.requires_grad)
        return made
