"""Count how often a tensor was written to, for every kind of tensor.

Leans on `Tensor._version` and `torch._C.DisableTorchFunction` (seen on torch 2.4 to 2.13). A tensor that was made in inference mode
has no count, and to ask for it raises RuntimeError. A number made of its content stands in. Classes of tensors and modes that take
part in every call of torch (`__torch_function__`) do not hear of the question.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import torch

from torchrelay.protocol.errors import UnsupportedError
from torchrelay.shim.tensors import digest

_unlike_all_others = itertools.count(-2, -1)
_WITHOUT_CONTENT = -1


def version_of(tensor: torch.Tensor) -> int:
    """Return the same number as before if the tensor was not written to since, as far as torch counts.

    Of two numbers that are not negative, the difference is the number of writes.
    """
    with torch._C.DisableTorchFunction():
        try:
            return tensor._version
        except RuntimeError:
            return _of_content(tensor)


def versions_of(tensors: Sequence[torch.Tensor]) -> list[int]:
    """Return `version_of` each tensor."""
    with torch._C.DisableTorchFunction():
        try:
            return [tensor._version for tensor in tensors]
        except RuntimeError:
            pass
    return [*map(version_of, tensors)]


def _of_content(tensor: torch.Tensor) -> int:
    """Return a negative number made of the content.

    Where the content cannot be read, no two answers are the same: nobody may take the tensor for unchanged.
    """
    if tensor.is_meta:
        return _WITHOUT_CONTENT
    try:
        with (
            torch.inference_mode(False),
            torch.no_grad(),
        ):  # what a digest keeps for the next one must serve outside, too
            return -(1 << 65) - int(digest.digest(tensor), 16)
    except (UnsupportedError, RuntimeError, NotImplementedError):
        return next(_unlike_all_others)


def writes_between(before: int, now: int, unknown: int) -> int:
    """Return how often a tensor with these two versions was written to. `unknown`: the answer where nobody has counted."""
    return now - before if min(before, now) >= 0 or before == now else unknown
