"""Hold small tensors by value, as a journal holds losses, counters and running statistics."""

from __future__ import annotations

import functools
import math
import re
import sys
from typing import Any, NamedTuple

import torch

from torchrelay.protocol.errors import StateMismatchError
from torchrelay.shim.adapters.raw_memory.memory import has_bytes, read
from torchrelay.shim.adapters.tensors.dtensor import Spread, around, local, spread_of, waited_for
from torchrelay.shim.adapters.tensors.storages import is_freed
from torchrelay.shim.adapters.tensors.tensor_classes import has_graph, is_leaf
from torchrelay.shim.capture.rng import byte_tensor, tensor_bytes
from torchrelay.shim.tensors.tensor_bytes import await_writes, strides_of, with_strides, write

SMALL_BYTES = 64 << 10
"""A tensor up to this size is kept by value; a larger one has to come from a replica or from the leaver."""

FRESH_BYTES = 1 << 20
"""The limit for tensors that the step has made and that are read after its gate: no other rank has them."""

_PLAIN = (torch.Tensor, torch.nn.Parameter)
_META = "meta"
"""A device whose tensors have no content: models are built there before they are spread over ranks."""


class TensorValue(NamedTuple):
    dtype: str
    shape: tuple[int, ...]
    device: str
    requires_grad: bool
    data: bytes
    spread: Spread | None = None
    """How the tensor is spread over ranks; all else is of this rank's part then."""
    strides: tuple[int, ...] = ()
    """Those of `strides_of`: empty for a contiguous tensor."""


def is_small(tensor: torch.Tensor, limit_bytes: int = SMALL_BYTES) -> bool:
    if type(tensor) not in _PLAIN:
        tensor = waited_for(local(tensor))
    return (
        type(tensor) in _PLAIN
        and tensor.layout is torch.strided
        and not tensor.is_quantized
        and not is_freed(tensor)
        and (tensor.is_meta or tensor.numel() * tensor.element_size() <= limit_bytes)
    )


def why_not_taken(tensor: torch.Tensor) -> str:
    """Return in words why a tensor is not by value in a gate's journal."""
    part = tensor if type(tensor) in _PLAIN else waited_for(local(tensor))
    if type(part) not in _PLAIN:
        return f"of class {type(part).__qualname__}, which has no memory of its own"
    if part.layout is not torch.strided or part.is_quantized:
        return "quantized" if part.is_quantized else f"of layout {part.layout}"
    return f"larger than {FRESH_BYTES >> 20} MiB"


def take_if_small(tensor: torch.Tensor, limit_bytes: int, held: bytes | None = None) -> TensorValue | None:
    """Return the value of a tensor of up to `limit_bytes`, else None. `held`: its content, where that is known already."""
    if type(tensor) in _PLAIN and tensor.is_cpu:
        dtype = tensor.dtype
        name, item_bytes = _COMMON.get(dtype, _NOT_COMMON)
        if item_bytes and tensor.layout is torch.strided:
            shape = tuple(tensor.shape)
            size_bytes = item_bytes * math.prod(shape)
            if size_bytes > limit_bytes or is_freed(tensor):
                return None
            if (not shape or tensor.is_contiguous()) and not tensor.is_neg() and (len(shape) < 4 or 1 not in shape):
                leaf = tensor.requires_grad and not has_graph(tensor)
                return TensorValue(name, shape, "cpu", leaf, read(tensor.data_ptr(), size_bytes))
    return _take_any(tensor, held) if is_small(tensor, limit_bytes) else None


def take(tensor: torch.Tensor, held: bytes | None = None) -> TensorValue:
    """Return the value of a tensor of any size. `held`: its content, where that is known already."""
    if type(tensor) in _PLAIN and tensor.is_cpu:
        return take_if_small(tensor, sys.maxsize) or _take_any(tensor)
    return _take_any(tensor, held)


def is_still(value: TensorValue, tensor: torch.Tensor) -> bool:
    """Return whether a tensor certainly has this value, without a copy of it, as most have in a walk. If False, `take` tells."""
    if type(tensor) not in _PLAIN or not tensor.is_cpu or tensor.dtype is not _BY_NAME.get(value.dtype):
        return False
    if tuple(tensor.shape) != value.shape or tensor.layout is not torch.strided or is_freed(tensor):
        return False
    if (value.shape and not tensor.is_contiguous()) or tensor.is_neg():
        return False
    if (tensor.requires_grad and not has_graph(tensor)) != value.requires_grad or value.spread is not None:
        return False
    return has_bytes(tensor.data_ptr(), value.data)


def _take_any(tensor: torch.Tensor, held: bytes | None = None) -> TensorValue:
    leaf_grad = is_leaf(tensor)
    part = tensor
    spread = None
    if type(tensor) not in _PLAIN:
        part = waited_for(local(tensor))
        spread = spread_of(tensor)
    name = dtype_name(part.dtype)
    device = _device_name(part.device)
    data = held if held is not None else b"" if part.is_meta else tensor_bytes(part)
    return TensorValue(name, tuple(part.shape), device, leaf_grad, data, spread, strides_of(part.detach()))


_COMMON = {
    dtype: (str(dtype).removeprefix("torch."), dtype.itemsize)
    for dtype in (
        torch.float64,
        torch.float32,
        torch.float16,
        torch.bfloat16,
        torch.int64,
        torch.int32,
        torch.uint8,
        torch.bool,
    )
}
"""Neither quantized nor complex: most steps make tensors of these, and each question to torch takes its time."""


_BY_NAME = {name: dtype for dtype, (name, _) in _COMMON.items()}
_NOT_COMMON = ("", 0)


@functools.cache
def dtype_name(dtype: torch.dtype) -> str:
    """Return torch's name of the type, without `torch.`."""
    return str(dtype).removeprefix("torch.")


_device_name = functools.cache(str)


def _dtype(name: str) -> torch.dtype:
    dtype = getattr(torch, name) if re.fullmatch(r"[a-z0-9_]+", name) else None
    if not isinstance(dtype, torch.dtype):
        raise ValueError(f"torch has no dtype {name!r}")
    return dtype


def build(value: TensorValue) -> torch.Tensor:
    """Make a new tensor with the recorded content."""
    dtype = _dtype(value.dtype)
    if value.device == _META:
        tensor = torch.empty(value.shape, dtype=dtype, device=_META)
    else:
        tensor = with_strides(
            byte_tensor(value.data).view(dtype).reshape(value.shape).clone().to(value.device), value.strides
        )
    if value.spread is not None:
        tensor = around(tensor, value.spread)
    return tensor.requires_grad_() if value.requires_grad else tensor


def fits(value: TensorValue, tensor: Any) -> bool:
    return (
        isinstance(tensor, torch.Tensor)
        and tuple((part := local(tensor)).shape) == value.shape
        and str(part.dtype) == f"torch.{value.dtype}"
        and spread_of(tensor) == value.spread
        and part.is_meta == (value.device == _META)
    )


def put(value: TensorValue, tensor: torch.Tensor) -> None:
    """Write the recorded content into an existing tensor, which may have aliases. One that was resized gets its form back.

    One that has the content is left alone: a graph that the script keeps may have it, and torch counts every write.
    """
    if is_still(value, tensor):
        return
    if not fits(value, tensor):
        _put_anew(value, tensor)
        return
    part = local(tensor)
    await_writes(part.device)
    # Only inference mode writes to what it has made.
    with torch.inference_mode(part.is_inference()), torch.no_grad():
        try:
            write(part.detach(), build(value._replace(spread=None)).detach())
        except StateMismatchError:  # set-up made it by `expand`, training did not
            _put_anew(value, tensor)


def _put_anew(value: TensorValue, tensor: torch.Tensor) -> None:
    with torch._C.DisableTorchFunctionSubclass():
        tensor.data = build(value._replace(requires_grad=False))
