"""Handle trees of modules, and what wraps them for data parallel training."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from torchrelay.shim.adapters.raw_memory.list_pointers import pointers
from torchrelay.shim.capture.handlers.handler import Handler, made_for_one_use, not_made
from torchrelay.shim.capture.models.module_parts import make_module
from torchrelay.shim.capture.models.module_state import put_bare, put_hooks, put_tree
from torchrelay.shim.capture.models.modules import ModuleTrees, TreeContent
from torchrelay.shim.capture.models.parameter_attributes import OfParameter, attributes_of
from torchrelay.shim.capture.models.spaces import fields, parts
from torchrelay.shim.capture.state.change_detection import WalkAnew
from torchrelay.shim.capture.state.edges import Edges, same_items
from torchrelay.shim.capture.state.host_state import StateNode
from torchrelay.shim.capture.state.parts import ddp_flags
from torchrelay.shim.capture.values import callables
from torchrelay.shim.capture.values.kinds import Kind
from torchrelay.shim.capture.values.replay_point import ABSENT

if TYPE_CHECKING:
    from torchrelay.shim.capture.records.encode import EncodedNode, Encoder
    from torchrelay.shim.capture.records.rebuild import StateRebuild
    from torchrelay.shim.capture.walks.walk import Walk


def _capture(walk: Walk, kind: Kind, obj: torch.nn.Module, parent: int, key: Any) -> None:
    tree = walk.trees.tree(obj)
    content = tree.take()
    number = walk.add(kind, obj, parent, key, content)
    walk.state.roots.append(obj)
    walk.state.covered.update(map(id, tree.modules))
    for place, value in tree.objects(content):
        walk.edge(number, place, value)
    for name in tree.hooked_tensors:
        walk.unknown(f"{walk.state.path(number)}.{name} (a hook of the tensor)", parent, key)


def _renewed(trees: ModuleTrees, node: StateNode) -> StateNode | None:
    then: TreeContent = node.content
    if not trees.has_same_hooks(then.tree):
        raise WalkAnew
    if then.tree.is_still(then):
        return None
    tree = trees.tree(node.obj)
    if tree is not then.tree:
        raise WalkAnew
    now = tree.take()
    same_values = now.values is then.values or pointers(now.values) == pointers(then.values)
    same_flags = now.flags is then.flags or now.flags == then.flags
    same_tensors = now.bound is then.bound and now.forms is then.forms
    same_attributes = now.attributes is then.attributes
    if same_values and same_attributes and same_flags and same_tensors and now.buffers == then.buffers:
        return None
    edges = node.edges if same_values and same_attributes else tree.objects(now)
    return StateNode(Kind.MODULE, node.obj, node.parent, node.key, now, edges)


def _undo(node: StateNode) -> None:
    node.content.tree.undo(node.content)


def _encode(encoder: Encoder, node: StateNode) -> Any:
    return encoder.tree(node.content)


def _make(rebuild: StateRebuild, node: EncodedNode) -> Any:
    if node.cls is None or (node.content[4] is None and node.content[8] is None):
        return not_made(rebuild, node)
    made = make_module(node.cls)
    if node.content[4] is None:
        rebuild.made_modules.add(id(made))
    return made


def _fill(rebuild: StateRebuild, node: EncodedNode, obj: Any) -> None:
    if node.content[4] is None:
        if not rebuild.is_at_gate:  # else this process has registered and removed those of the step itself
            put_hooks(node.content[9], obj, rebuild.decode, rebuild.made_hooks)
        put_tree(node.content, obj, rebuild.decode, rebuild.made_modules)
    else:
        put_bare(node.content, obj, rebuild.mapping)


def _child(parent: Any, key: Any) -> Any:
    name, attribute = key
    owner = dict(parent.named_modules()).get(name) if name else parent
    if owner is None:
        return ABSENT
    if type(attribute) is OfParameter:
        found = attributes_of(owner, attribute)
        return ABSENT if found is None else found
    own = fields(owner)
    return own[attribute] if attribute in own else parts(owner).get(attribute, ABSENT)


def _capture_ddp(walk: Walk, kind: Kind, obj: Any, parent: int, key: Any) -> None:
    number = walk.add(kind, obj, parent, key, ddp_flags(obj))
    walk.edge(number, "module", obj.module)
    for name, value in _beside(obj):
        walk.edge(number, name, value)


def _beside(wrapper: Any) -> Edges:
    """Return the hooks of a wrapper: of communication, and those that it has as a module."""
    of_communication = [("_comm_hooks", wrapper._comm_hooks)] if wrapper._comm_hooks else []
    return [*of_communication, *callables.hooks(wrapper)]


def _same_hooks(now: Edges, then: Edges) -> bool:
    return [name for name, _ in now] == [name for name, _ in then] and all(
        same_items(hooks, before) for (_, hooks), (_, before) in zip(now, then)
    )


def _renewed_ddp(trees: ModuleTrees, node: StateNode) -> StateNode | None:
    flags = ddp_flags(node.obj)
    module = node.obj._modules.get("module")
    if module is not node.edges[0][1] or not _same_hooks(_beside(node.obj), node.edges[1:]):
        raise WalkAnew
    return None if flags == node.content else StateNode(node.kind, node.obj, node.parent, node.key, flags, node.edges)


def _undo_ddp(node: StateNode) -> None:
    node.obj.__dict__.update(node.content)


def _fill_ddp(rebuild: StateRebuild, node: EncodedNode, obj: Any) -> None:
    obj.__dict__.update(node.content)


def _of_ddp(parent: Any, key: Any) -> Any:
    return getattr(parent, key, ABSENT)


HANDLERS = (
    Handler(
        Kind.MODULE,
        capture=_capture,
        renewed=_renewed,
        undo=_undo,
        encode=_encode,
        make=_make,
        fill=_fill,
        child=_child,
        turn=0,
    ),
    Handler(
        Kind.DDP,
        capture=_capture_ddp,
        renewed=_renewed_ddp,
        undo=_undo_ddp,
        make=made_for_one_use,
        fill=_fill_ddp,
        child=_of_ddp,
    ),
)
