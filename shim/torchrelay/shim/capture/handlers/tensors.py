"""Tensors that are no parameters: small ones by value, larger ones by what their content has to come from."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from torchrelay.protocol.errors import StateMismatchError
from torchrelay.shim.adapters.dtensor import around, local, spread_of
from torchrelay.shim.capture import small
from torchrelay.shim.capture.aliases import Alias
from torchrelay.shim.capture.change_detection import WalkAnew
from torchrelay.shim.capture.handler import Handler, of_same_class
from torchrelay.shim.capture.host_state import LargeTensor, StateNode
from torchrelay.shim.capture.kinds import Kind
from torchrelay.shim.capture.replay_point import ABSENT
from torchrelay.shim.tensors.tensor_versions import version_of

if TYPE_CHECKING:
    from torchrelay.shim.capture.encode import EncodedNode, Encoder
    from torchrelay.shim.capture.modules import ModuleTrees
    from torchrelay.shim.capture.rebuild import StateRebuild
    from torchrelay.shim.capture.walk import Walk


def _capture(walk: Walk, kind: Kind, obj: torch.Tensor, parent: int, key: Any) -> None:
    if type(obj) is not torch.Tensor and isinstance(obj, torch.nn.Parameter):
        walk.state.versions.append((obj, version_of(obj), str(key)))
        return
    limit_bytes = small.FRESH_BYTES if walk.is_fresh(obj) else small.SMALL_BYTES
    value = small.take_if_small(obj, limit_bytes)
    if value is not None:
        walk.add(kind, obj, parent, key, value)
        return
    path = walk.state.path(parent, key)
    content = LargeTensor(obj.dtype, tuple(local(obj).shape), str(obj.device), spread_of(obj))
    walk.add(kind, obj, parent, key, content)
    walk.state.versions.append((obj, version_of(obj), path))
    walk.state.large[path] = obj


def _same(trees: ModuleTrees, node: StateNode) -> bool:
    content = node.content
    if isinstance(content, small.TensorValue):
        return small.take(node.obj) == content
    if isinstance(content, Alias) and trees.owner_of(node.obj) is None:
        raise WalkAnew
    if isinstance(content, LargeTensor) and tuple(local(node.obj).shape) != content.shape:
        raise WalkAnew
    return True


def _undo(node: StateNode) -> None:
    if isinstance(node.content, small.TensorValue):
        small.put(node.content, node.obj)


def _encode(encoder: Encoder, node: StateNode) -> Any:
    return tuple(node.content) if type(node.content) is small.TensorValue else node.content


def _make(rebuild: StateRebuild, node: EncodedNode) -> Any:
    content = node.content
    if content is None:
        rebuild.leaves(f"view of a parameter {node.key!r}")
        return ABSENT
    if isinstance(content, Alias):
        return content.make()
    if isinstance(content, LargeTensor):
        part = torch.empty(content.shape, dtype=content.dtype, device=content.device)
        return part if content.spread is None else around(part, content.spread)
    return small.build(content)


def _fits(node: EncodedNode, there: Any) -> bool:
    content = node.content
    if not of_same_class(node, there):
        return False
    if isinstance(content, Alias):
        return content.fits(there)
    if isinstance(content, LargeTensor):
        same_form = tuple(local(there).shape) == content.shape and there.dtype == content.dtype
        return same_form and spread_of(there) == content.spread
    return content is None or small.fits(content, there)


def _fill(rebuild: StateRebuild, node: EncodedNode, obj: Any) -> None:
    if isinstance(node.content, small.TensorValue):
        small.put(node.content, obj)
    elif isinstance(node.content, Alias):
        root = rebuild.objects[node.content.root]
        if root is ABSENT:
            raise StateMismatchError(f"{rebuild.path(node)} shares the memory of a model that is not here")
        node.content.share(obj, root)


HANDLERS = (
    Handler(
        Kind.TENSOR,
        capture=_capture,
        same=_same,
        undo=_undo,
        encode=_encode,
        make=_make,
        fits=_fits,
        fill=_fill,
        comes_and_goes=True,
    ),
)
