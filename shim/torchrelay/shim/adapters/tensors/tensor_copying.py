"""Tell which tensors Python code is about to overwrite whole: by `copy_`, and by the function for many at once.

Leans on `copy_` being a method of `torch._C.TensorBase`, which `torch.Tensor` inherits and a function of `torch.Tensor` hides, and
on `torch._foreach_copy_` being looked up in the module. Dynamo handles both by name, and modes are given what `torch.Tensor` has
under that name. What C++ code copies by itself is not seen. Seen on torch 2.13.0 and 2.14.1; torch before 2.2 has no
`_foreach_copy_`.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch

from torchrelay.protocol.errors import UnsupportedError

_ONE = "copy_"
_MANY = "_foreach_copy_"


def check_supported() -> None:
    """Raise UnsupportedError where this torch keeps `copy_` elsewhere."""
    if _ONE in vars(torch.Tensor) or not hasattr(torch._C.TensorBase, _ONE):
        raise UnsupportedError(f"torch {torch.__version__} does not keep Tensor.copy_ where it is looked for")


def watch(tell: Callable[[list[Any]], None]) -> None:
    """Call `tell`, from now on, with the tensors that are about to be overwritten, in whatever thread that is.

    It must not raise.
    """
    copy: Any = getattr(torch._C.TensorBase, _ONE)

    @functools.wraps(copy)
    def copy_(self: Any, *args: Any, **kwargs: Any) -> Any:
        tell([self])
        return copy(self, *args, **kwargs)

    setattr(torch.Tensor, _ONE, copy_)
    many: Any = getattr(torch, _MANY, None)
    if many is None:
        return

    @functools.wraps(many)
    def foreach_copy_(targets: Any, *args: Any, **kwargs: Any) -> Any:
        tell([*targets] if isinstance(targets, list | tuple) else [])
        return many(targets, *args, **kwargs)

    setattr(torch, _MANY, foreach_copy_)
