"""Take tensors apart that have no memory in which their values lie in order, and build them again: sparse and quantized ones.

Leans on `Tensor._indices`, `_values`, the accessors of compressed layouts, those of quantized tensors, and on `tensor.data = other`
exchanging what a tensor is made of (`resize_as_sparse_` for compressed layouts). Seen on torch 2.13.0. Nested tensors are not taken
apart.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch

_COMPRESSED: dict[str, tuple[torch.layout, Callable[..., torch.Tensor], bool]] = {
    "sparse_csr": (torch.sparse_csr, torch.sparse_csr_tensor, True),
    "sparse_csc": (torch.sparse_csc, torch.sparse_csc_tensor, False),
    "sparse_bsr": (torch.sparse_bsr, torch.sparse_bsr_tensor, True),
    "sparse_bsc": (torch.sparse_bsc, torch.sparse_bsc_tensor, False),
}
"""By name: the layout, what makes such a tensor, and whether its rows are the compressed ones."""
_BY_LAYOUT = {layout: name for name, (layout, _, _) in _COMPRESSED.items()}
_COO = "sparse_coo"
_PER_TENSOR = {torch.per_tensor_affine: "per_tensor"}
_PER_CHANNEL = {torch.per_channel_affine: "per_channel"}


class CompositeForm(NamedTuple):
    """What a tensor is beside its parts.

    `numbers`: whether it is coalesced; scale and zero point, or axis, and the quantized type.
    """

    layout: str
    shape: tuple[int, ...]
    numbers: tuple[Any, ...] = ()


def is_composite(tensor: torch.Tensor) -> bool:
    """Return whether a plain tensor has no memory in which its values lie in order."""
    return tensor.layout is not torch.strided or tensor.is_quantized or tensor.is_nested


def form_of(tensor: torch.Tensor) -> CompositeForm | None:
    """Return the form of a composite tensor; None where it cannot be taken apart."""
    shape = () if tensor.is_nested else tuple(tensor.shape)
    if tensor.layout is torch.sparse_coo:
        return CompositeForm(_COO, shape, (tensor.is_coalesced(),))
    if tensor.layout in _BY_LAYOUT:
        return CompositeForm(_BY_LAYOUT[tensor.layout], shape)
    if tensor.is_quantized and tensor.qscheme() in _PER_TENSOR:
        return CompositeForm("per_tensor", shape, (tensor.q_scale(), tensor.q_zero_point(), _name(tensor.dtype)))
    if tensor.is_quantized and tensor.qscheme() in _PER_CHANNEL:
        return CompositeForm("per_channel", shape, (tensor.q_per_channel_axis(), _name(tensor.dtype)))
    return None


def parts_of(tensor: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """Return the plain tensors that a composite tensor with a form is made of, without a graph."""
    tensor = tensor.detach()
    if tensor.layout is torch.sparse_coo:
        return tensor._indices(), tensor._values()
    if tensor.layout in _BY_LAYOUT:
        by_rows = _COMPRESSED[_BY_LAYOUT[tensor.layout]][2]
        pointers = (
            (tensor.crow_indices(), tensor.col_indices()) if by_rows else (tensor.ccol_indices(), tensor.row_indices())
        )
        return (*pointers, tensor.values())
    values = tensor.int_repr().contiguous()
    if tensor.qscheme() in _PER_CHANNEL:
        return values, tensor.q_per_channel_scales(), tensor.q_per_channel_zero_points()
    return (values,)


def build(form: CompositeForm, parts: tuple[torch.Tensor, ...]) -> torch.Tensor:
    """Return a new tensor of these parts."""
    if form.layout == _COO:
        indices, values = parts
        return torch.sparse_coo_tensor(
            indices, values, form.shape, is_coalesced=form.numbers[0] or None, check_invariants=False
        )
    if form.layout in _COMPRESSED:
        return _COMPRESSED[form.layout][1](*parts, form.shape, check_invariants=False)
    if form.layout == "per_tensor":
        scale, zero_point, _ = form.numbers
        return torch._make_per_tensor_quantized_tensor(parts[0], scale, zero_point)
    values, scales, zero_points = parts
    return torch._make_per_channel_quantized_tensor(values, scales, zero_points, form.numbers[0])


def put(tensor: torch.Tensor, made: torch.Tensor) -> None:
    """Let a composite tensor be made of what another one of the same layout is made of, or of copies of that."""
    with torch.no_grad():
        if tensor.layout in _BY_LAYOUT:  # these do not exchange their parts
            target = tensor.detach()
            target.resize_as_sparse_(made)
            target.copy_(made)
        else:
            tensor.data = made


def addresses(tensor: torch.Tensor) -> tuple[int, ...]:
    """Return where its parts lie: others than before where they were exchanged."""
    if tensor.is_quantized:
        return (tensor.data_ptr(),)
    return tuple(part.data_ptr() for part in parts_of(tensor))


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
