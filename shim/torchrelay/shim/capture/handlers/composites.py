"""Handle tensors that are made of others: sparse and quantized ones.

Small ones go by value. Larger ones, such as the adjacency of a graph, are told by a mark of their content: set-up makes them in
each process, and a process that has another content there cannot take over.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from torchrelay.protocol.errors import StateMismatchError
from torchrelay.shim.adapters.tensors import composite_tensors
from torchrelay.shim.adapters.tensors.composite_tensors import CompositeForm, build, form_of, is_composite, parts_of
from torchrelay.shim.adapters.tensors.tensor_classes import is_leaf
from torchrelay.shim.capture.handlers.handler import Handler
from torchrelay.shim.capture.models.modules import ModuleTrees
from torchrelay.shim.capture.state.host_state import StateNode
from torchrelay.shim.capture.values import small
from torchrelay.shim.capture.values.kinds import Kind
from torchrelay.shim.capture.values.replay_point import ABSENT
from torchrelay.shim.tensors.digest import digest
from torchrelay.shim.tensors.tensor_bytes import size_bytes
from torchrelay.shim.tensors.tensor_versions import version_of

if TYPE_CHECKING:
    from torchrelay.shim.capture.records.encode import EncodedNode
    from torchrelay.shim.capture.records.rebuild import StateRebuild
    from torchrelay.shim.capture.walks.walk import Walk


class CompositeValue(NamedTuple):
    form: CompositeForm
    parts: tuple[small.TensorValue, ...]
    requires_grad: bool


class CompositeMark(NamedTuple):
    """`digests`: of the parts' contents."""

    form: CompositeForm
    digests: tuple[str, ...]
    requires_grad: bool


def capture(walk: Walk, obj: torch.Tensor, parent: int, key: Any) -> None:
    """Add a node for a composite tensor, or name it where it cannot be taken apart."""
    if form_of(obj) is None:
        walk.unknown(f"{walk.state.path(parent, key)} (a nested tensor)", parent, key)
        return
    is_fresh = walk.is_fresh(obj)
    content = _content(obj, small.FRESH_BYTES if is_fresh else small.SMALL_BYTES)
    number = walk.add(Kind.COMPOSITE, obj, parent, key, content)
    walk.state.nodes[number].seen = _stamp(obj)
    if is_fresh and isinstance(content, CompositeMark):  # no set-up makes what a step has made
        walk.state.large[walk.state.path(number)] = obj


def _stamp(obj: torch.Tensor) -> tuple[Any, ...]:
    """Return what is another one once the tensor was written to, or what it is made of was exchanged."""
    return version_of(obj), composite_tensors.addresses(obj), form_of(obj)


def _content(obj: torch.Tensor, limit_bytes: int = small.SMALL_BYTES) -> CompositeValue | CompositeMark:
    form = form_of(obj)
    parts = parts_of(obj)
    assert form is not None
    if sum(map(size_bytes, parts)) <= limit_bytes:
        return CompositeValue(form, tuple(map(small.take, parts)), is_leaf(obj))
    return CompositeMark(form, tuple(map(digest, parts)), is_leaf(obj))


def _renewed(trees: ModuleTrees, node: StateNode) -> StateNode | None:
    stamp = _stamp(node.obj)
    if stamp == node.seen:
        return None
    content = _content(node.obj, _limit_bytes(node.content))
    return StateNode(node.kind, node.obj, node.parent, node.key, content, seen=stamp)


def _limit_bytes(content: CompositeValue | CompositeMark) -> int:
    return small.FRESH_BYTES if isinstance(content, CompositeValue) else small.SMALL_BYTES


def _undo(node: StateNode) -> None:
    if _stamp(node.obj) == node.seen:
        return
    if isinstance(node.content, CompositeValue):
        composite_tensors.put(node.obj, _built(node.content))
    elif _content(node.obj) != node.content:
        raise StateMismatchError(
            f"written to by a step that is done again: a {node.content.form.layout} tensor larger than "
            f"{small.SMALL_BYTES >> 10} KiB"
        )


def _built(content: CompositeValue) -> torch.Tensor:
    return build(content.form, tuple(map(small.build, content.parts)))


def _make(rebuild: StateRebuild, node: EncodedNode) -> Any:
    if isinstance(node.content, CompositeValue):
        made = _built(node.content)
        return made.requires_grad_() if node.content.requires_grad else made
    rebuild.lacks(node)
    return ABSENT


def _fits(node: EncodedNode, there: Any) -> bool:
    if type(there) is not torch.Tensor or not is_composite(there) or (form := form_of(there)) is None:
        return False
    if isinstance(node.content, CompositeMark):
        return _content(there) == node.content
    same_types = [part.dtype for part in node.content.parts] == [
        small.dtype_name(part.dtype) for part in parts_of(there)
    ]
    return same_types and form[:2] == node.content.form[:2] and is_leaf(there) == node.content.requires_grad


def _fill(rebuild: StateRebuild, node: EncodedNode, obj: torch.Tensor) -> None:
    if isinstance(node.content, CompositeValue) and _content(obj, small.FRESH_BYTES) != node.content:
        composite_tensors.put(obj, _built(node.content))


HANDLERS = (
    Handler(
        Kind.COMPOSITE,
        renewed=_renewed,
        undo=_undo,
        make=_make,
        fits=_fits,
        fill=_fill,
        comes_and_goes=True,
    ),
)
