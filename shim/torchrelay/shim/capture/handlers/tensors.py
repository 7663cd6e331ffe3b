"""Handle tensors that are no parameters of a model or an optimizer.

Small ones go by value, larger ones by where their content has to come from.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from torchrelay.protocol.errors import StateMismatchError
from torchrelay.shim.adapters.tensors.composite_tensors import is_composite
from torchrelay.shim.adapters.tensors.dtensor import around, local, spread_of
from torchrelay.shim.adapters.tensors.storages import is_freed, may_be_shared
from torchrelay.shim.adapters.tensors.tensor_classes import has_graph, is_leaf, is_of_own_class, of_class
from torchrelay.shim.capture.handlers import composites
from torchrelay.shim.capture.handlers.handler import Handler, of_same_class
from torchrelay.shim.capture.models.aliases import Alias, parameters_of
from torchrelay.shim.capture.models.modules import ModuleTrees
from torchrelay.shim.capture.state.change_detection import WalkAnew
from torchrelay.shim.capture.state.host_state import EntryForm, LargeTensor, OptimizerTensor, StateNode
from torchrelay.shim.capture.state.key_text import text_of
from torchrelay.shim.capture.values import small
from torchrelay.shim.capture.values.base_types import fields
from torchrelay.shim.capture.values.kinds import Kind
from torchrelay.shim.capture.values.replay_point import ABSENT
from torchrelay.shim.tensors.stand_ins import stand_in
from torchrelay.shim.tensors.tensor_bytes import strides_of, with_strides
from torchrelay.shim.tensors.tensor_versions import version_of

if TYPE_CHECKING:
    from torchrelay.shim.capture.records.encode import EncodedNode, Encoder
    from torchrelay.shim.capture.records.rebuild import StateRebuild
    from torchrelay.shim.capture.walks.walk import Walk


def _capture(walk: Walk, kind: Kind, obj: torch.Tensor, parent: int, key: Any) -> None:
    if type(obj) is not torch.Tensor and isinstance(obj, torch.nn.Parameter):
        if not walk.knows_owners:
            walk.parameters.append((parent, key, obj))
            return
        if type(obj) is not torch.nn.Parameter or is_freed(obj) or walk.has_owner(obj):
            walk.state.versions.append((obj, version_of(obj), str(key)))
            return
    if type(obj) is torch.Tensor and is_composite(obj):
        composites.capture(walk, obj, parent, key)
        return
    limit_bytes = small.FRESH_BYTES if walk.is_fresh(obj) else small.SMALL_BYTES
    value = walk.trees.reads.take_if_small(obj, limit_bytes)
    if value is not None:
        _add(walk, kind, obj, parent, key, value)
        return
    path = walk.state.path(parent, key)
    part = local(obj)
    freed = is_freed(part)
    content = LargeTensor(
        part.dtype, tuple(part.shape), str(part.device), spread_of(obj), is_leaf(obj), strides_of(part.detach()), freed
    )
    _add(walk, kind, obj, parent, key, content)
    if freed:
        return
    walk.state.versions.append((obj, version_of(obj), path))
    walk.state.large[path] = obj


def _add(walk: Walk, kind: Kind, obj: torch.Tensor, parent: int, key: Any, content: Any) -> None:
    number = walk.add(kind, obj, parent, key, content)
    if _has_attributes(obj):
        walk.fields(number, obj)


def _has_attributes(obj: torch.Tensor) -> bool:
    """Return whether attributes of the tensor are state: a class of its own may get some at any time."""
    return bool(fields(obj)) if type(obj) is torch.Tensor else is_of_own_class(obj)


def _attributes(node: StateNode) -> Any:
    """Return the dict that held the attributes when the node was made; None for a class that has none."""
    return node.edges[0][1] if node.edges else None


def _renewed(trees: ModuleTrees, node: StateNode) -> StateNode | None:
    content = node.content
    obj = node.obj
    if (fields(obj) is not _attributes(node)) if node.edges else (type(obj) is torch.Tensor and fields(obj)):
        raise WalkAnew
    if isinstance(content, small.TensorValue | LargeTensor) and may_be_shared(obj) and _lies_in_a_model(trees, obj):
        raise WalkAnew  # a parameter was given its memory since (`p.data = kept`)
    if isinstance(content, small.TensorValue):
        if small.is_still(content, obj):
            return None
        now = trees.reads.take(obj)
        if now == content:
            return None
        if len(now.data) > max(len(content.data), small.SMALL_BYTES):
            raise WalkAnew
        return StateNode(node.kind, obj, node.parent, node.key, now, node.edges)
    if isinstance(content, Alias) and trees.owner_of(obj) is None:
        raise WalkAnew
    if isinstance(content, OptimizerTensor) and not node.seen.holds(obj):
        raise WalkAnew
    if isinstance(content, LargeTensor):
        part = local(obj)
        if tuple(part.shape) != content.shape or is_freed(part) is not content.freed:
            raise WalkAnew
    return None


def _lies_in_a_model(trees: ModuleTrees, tensor: torch.Tensor) -> bool:
    """Return whether a tensor that had memory of its own shares that of a parameter or buffer."""
    return (
        type(tensor) in (torch.Tensor, torch.nn.Parameter)
        and not has_graph(tensor)
        and trees.owner_of(tensor) is not None
    )


def _undo(node: StateNode) -> None:
    if node.edges and fields(node.obj) is not _attributes(node):
        object.__setattr__(node.obj, "__dict__", _attributes(node))
    if isinstance(node.content, small.TensorValue):
        small.put(node.content, node.obj)


def _encode(encoder: Encoder, node: StateNode) -> Any:
    return tuple(node.content) if type(node.content) is small.TensorValue else node.content


def _own_class(encoder: Encoder, node: StateNode) -> str | None:
    """Return the class's name, which is written where the class cannot be found by it."""
    cls = type(node.obj)
    return cls.__qualname__ if cls is not torch.Tensor and is_of_own_class(node.obj) else None


def _make(rebuild: StateRebuild, node: EncodedNode) -> Any:
    if type(node.extra) is not str:
        return _make_plain(rebuild, node)
    if node.cls is None:
        rebuild.lacks(node)
        return ABSENT
    made = _make_plain(rebuild, node)
    return made if made is ABSENT else of_class(made, node.cls)


def _like(node: EncodedNode, made: torch.Tensor) -> torch.Tensor:
    """Return the tensor as a parameter where the recorded tensor was one."""
    return torch.nn.Parameter(made.detach(), made.requires_grad) if node.cls is torch.nn.Parameter else made


def _make_plain(rebuild: StateRebuild, node: EncodedNode) -> Any:
    content = node.content
    if content is None:
        rebuild.leaves(f"view of a parameter {text_of(node.key)}")
        return ABSENT
    if isinstance(content, OptimizerTensor):
        return _like(node, _entry(content.form))
    if isinstance(content, Alias):
        return _like(node, content.make())
    if isinstance(content, LargeTensor):
        part = with_strides(stand_in(content.shape, content.dtype, content.device), content.strides)
        if content.spread is not None:
            return around(part, content.spread)
        return _like(node, part.requires_grad_() if content.requires_grad else part)
    return _like(node, small.build(content))


def _fits(node: EncodedNode, there: Any) -> bool:
    content = node.content
    if not of_same_class(node, there):
        return False
    if isinstance(content, OptimizerTensor):
        return tuple(there.shape) == content.form.shape and there.dtype == content.form.dtype
    if isinstance(content, Alias):
        return content.fits(there)
    if isinstance(content, LargeTensor):
        part = local(there)
        same_form = tuple(part.shape) == content.shape and part.dtype == content.dtype
        return same_form and spread_of(there) == content.spread and strides_of(part.detach()) == content.strides
    return content is None or (small.fits(content, there) and strides_of(local(there).detach()) == content.strides)


def _fill(rebuild: StateRebuild, node: EncodedNode, obj: Any) -> None:
    if isinstance(node.content, small.TensorValue | LargeTensor) and rebuild.shares_a_models_memory(obj):
        # the lost rank had bound another buffer since it kept this one
        obj.data = with_strides(stand_in(obj.shape, obj.dtype, obj.device), strides_of(obj.detach()))
    if isinstance(node.content, small.TensorValue):
        small.put(node.content, obj)
    elif isinstance(node.content, OptimizerTensor):
        _bind(rebuild, node, node.content, obj)
    elif isinstance(node.content, LargeTensor):
        part = local(obj)
        if is_freed(part) is not node.content.freed:
            end = int(part.storage_offset()) + part.numel()
            size_bytes = 0 if node.content.freed else end * part.element_size()
            part.untyped_storage().resize_(size_bytes)
    elif isinstance(node.content, Alias):
        root = rebuild.objects[node.content.root]
        if root is ABSENT:
            raise StateMismatchError(f"{rebuild.path(node)} shares the memory of a model that is not here")
        node.content.share(obj, root)


def _bind(rebuild: StateRebuild, node: EncodedNode, content: OptimizerTensor, obj: torch.Tensor) -> None:
    """Give the tensor to its optimizer, whose state is filled later: it is one object under both names."""
    optimizer = rebuild.objects[content.optimizer]
    parameters = [] if optimizer is ABSENT else parameters_of(optimizer)
    if content.place >= len(parameters):
        raise StateMismatchError(f"{rebuild.path(node)} is of the state of an optimizer that is not here")
    values = optimizer.state[parameters[content.place]]
    for name, form in content.entries.items():
        if name == content.name and values.get(name) is not obj:
            values[name] = obj
        elif name not in values:
            values[name] = _entry(form)


def _entry(form: EntryForm) -> torch.Tensor:
    return with_strides(stand_in(form.shape, form.dtype, form.device), form.strides)


HANDLERS = (
    Handler(
        Kind.TENSOR,
        capture=_capture,
        renewed=_renewed,
        undo=_undo,
        encode=_encode,
        extra=_own_class,
        make=_make,
        fits=_fits,
        fill=_fill,
        comes_and_goes=True,
        turn=2,
    ),
)
