"""Handle tensors that are spread over ranks: return this rank's part, and make a tensor like another one around a part.

Leans on `DTensor._local_tensor`, `DTensor._spec` (`mesh`, `placements`, `tensor_meta`), the constructors of `DTensor`,
`DTensorSpec` and `TensorMeta` and, for results of functional collectives that were not waited for yet,
`AsyncCollectiveTensor.trigger_wait`. Neither module is imported here: without it there is no such tensor. Seen on torch 2.13.0.
"""

from __future__ import annotations

import gc
import sys
from dataclasses import dataclass
from typing import Any

import torch

from torchrelay.protocol.errors import StateMismatchError
from torchrelay.shim.adapters.tensors.tensor_classes import plain

_DTENSOR = "torch.distributed.tensor"
_SPECS = "torch.distributed.tensor._dtensor_spec"
_FUNCTIONAL = "torch.distributed._functional_collectives"


def is_spread(tensor: Any) -> bool:
    """Return whether it is a DTensor: this process holds its local tensor."""
    cls = type(tensor)
    if cls is torch.Tensor or cls is torch.nn.Parameter:
        return False
    module = sys.modules.get(_DTENSOR)
    return module is not None and isinstance(tensor, module.DTensor)


def local(tensor: torch.Tensor) -> torch.Tensor:
    """Return this rank's part of a tensor that is spread over ranks; any other tensor itself, without a class of the script's."""
    if not is_spread(tensor):
        return plain(tensor)
    part: torch.Tensor = waited_for(tensor._local_tensor)  # type: ignore[attr-defined]  # a DTensor's
    return part


def waited_for(tensor: torch.Tensor) -> torch.Tensor:
    """Return the result of a functional collective once it is there; any other tensor as it is."""
    module = sys.modules.get(_FUNCTIONAL)
    if module is not None and isinstance(tensor, module.AsyncCollectiveTensor):
        return tensor.trigger_wait()  # type: ignore[no-any-return]  # torch gives it no type
    return tensor


def like(spread: Any, part: torch.Tensor) -> torch.Tensor:
    """Return a DTensor around `part`, laid out as `spread` is."""
    spec = spread._spec
    return _made(part, spec.mesh, spec.placements, spec.shape, spec.tensor_meta.stride)


def _made(
    part: torch.Tensor, mesh: Any, placements: tuple[Any, ...], shape: tuple[int, ...], stride: tuple[int, ...]
) -> torch.Tensor:
    """Return a DTensor around the memory of `part`.

    `from_local` would copy a part that is on another device than its mesh, as offloaded ones are.
    """
    specs = sys.modules[_SPECS]
    meta = specs.TensorMeta(torch.Size(shape), stride, part.dtype)
    spec = specs.DTensorSpec(mesh, placements, tensor_meta=meta)
    made: torch.Tensor = sys.modules[_DTENSOR].DTensor(part.detach(), spec, requires_grad=False)
    return made


@dataclass(frozen=True)
class Spread:
    """How a tensor is laid out over ranks, for another process. `groups`: names of the groups of its mesh, one a dimension."""

    groups: tuple[str, ...]
    placements: tuple[Any, ...]
    shape: tuple[int, ...]
    stride: tuple[int, ...]


def spread_of(tensor: Any) -> Spread | None:
    """Return how the tensor is spread; None for a tensor that is not."""
    if not is_spread(tensor):
        return None
    spec = tensor._spec
    meta = spec.tensor_meta
    return Spread(_groups(spec.mesh), tuple(spec.placements), tuple(meta.shape), tuple(meta.stride))


def _groups(mesh: Any) -> tuple[str, ...]:
    return tuple(str(mesh.get_group(dimension).group_name) for dimension in range(mesh.ndim))


def mesh_of(groups: tuple[str, ...]) -> Any:
    """Return the mesh of this process that has these groups, one for each dimension.

    Raises StateMismatchError where there is none. Slow: it looks at all objects of the process.
    """
    device_mesh = sys.modules.get("torch.distributed.device_mesh")
    meshes = [m for m in gc.get_objects() if device_mesh is not None and type(m) is device_mesh.DeviceMesh]
    mesh = next((m for m in meshes if m.ndim == len(groups) and _groups(m) == groups), None)
    if mesh is None:
        raise StateMismatchError(f"a tensor is spread over a mesh of groups {', '.join(groups)}, which is not here")
    return mesh


def around(part: torch.Tensor, spread: Spread, mesh: Any = None) -> torch.Tensor:
    """Return a DTensor around `part`, over `mesh`, or the one that `mesh_of` finds. Raises StateMismatchError as that does."""
    mesh = mesh if mesh is not None else mesh_of(spread.groups)
    return _made(part, mesh, spread.placements, spread.shape, spread.stride)


def mesh_among(tensor: Any, groups: tuple[str, ...]) -> Any:
    """Return the mesh that `tensor` is spread over, if it has these groups; None otherwise."""
    return tensor._spec.mesh if is_spread(tensor) and _groups(tensor._spec.mesh) == groups else None


def replica_ranks(tensor: Any) -> list[int]:
    """Return the ranks whose local part is the same part of the whole; none for a tensor that is not spread."""
    if not is_spread(tensor):
        return []
    mesh = tensor._spec.mesh
    place = mesh.get_coordinate()
    if place is None:
        return []
    alike = (slice(None) if p.is_replicate() else place[d] for d, p in enumerate(tensor._spec.placements))
    return [int(rank) for rank in mesh.mesh[tuple(alike)].flatten().tolist()]


def laid_out_alike(one: Any, other: Any) -> bool:
    """Return whether both are spread over the same ranks in the same way."""
    a = one._spec
    b = other._spec
    return bool(a.mesh == b.mesh and a.placements == b.placements and a.shape == b.shape)
