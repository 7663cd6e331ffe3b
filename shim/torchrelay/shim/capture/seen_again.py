"""Whether a node of an earlier walk is as it was, and what it is otherwise."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from operator import is_
from typing import Any

from torchrelay.shim.adapters import cycles, held_generators
from torchrelay.shim.adapters.dtensor import local
from torchrelay.shim.adapters.list_pointers import pointers
from torchrelay.shim.capture import callables, small
from torchrelay.shim.capture.edges import NOTHING, Edges, not_plain, same_items, same_mapping
from torchrelay.shim.capture.host_state import Deep, Fields, LargeTensor, Node
from torchrelay.shim.capture.kinds import ATTRS, PARAM_GROUP, PLAIN, Kind
from torchrelay.shim.capture.long_list import LONG
from torchrelay.shim.capture.modules import ModuleTrees, TreeContent
from torchrelay.shim.capture.parts import (
    Bindings,
    attributes,
    dataset_parts,
    ddp_flags,
    loader_parts,
    optimizer_attributes,
    optimizer_hooks,
    still_there,
)


class Restart(Exception):
    """The earlier walk is no basis; always answered with a walk from scratch."""


def _same_list(trees: ModuleTrees, node: Node) -> bool:
    obj, content = node.obj, node.content
    if type(content) is list:
        return len(obj) == len(content) and all(map(is_, obj, content))
    now = trees.long_lists.look(obj)
    return now is not None and now.seen is content.seen and bool(now.length == content.length)


def _same_attributes(trees: ModuleTrees, node: Node) -> bool:
    return same_mapping(vars(node.obj) if _only_fields(type(node.obj)) else attributes(node.obj), node.content)


def _same_tensor(trees: ModuleTrees, node: Node) -> bool:
    content = node.content
    if isinstance(content, small.TensorValue):
        return small.take(node.obj) == content
    if isinstance(content, LargeTensor) and tuple(local(node.obj).shape) != content.shape:
        raise Restart
    return True


def _same_dataset(trees: ModuleTrees, node: Node) -> bool:
    plain, below = dataset_parts(node.obj)
    edges = {key: value for key, value in node.edges if type(key) is not Deep}
    return same_mapping(plain, node.content) and same_mapping(below, edges) and still_there(node.obj, node.edges)


def _same_loader(trees: ModuleTrees, node: Node) -> bool:
    edges = {key: value for key, value in node.edges if type(key) is not Deep}
    return same_mapping(loader_parts(node.obj), edges) and still_there(node.obj, node.edges)


def _same_array(trees: ModuleTrees, node: Node) -> bool:
    now, then = node.obj, node.content
    return bool(now.shape == then.shape and now.dtype == then.dtype and now.tobytes() == then.tobytes())


def _same_function(trees: ModuleTrees, node: Node) -> bool:
    if bool(callables.fields(node.obj)) != any(type(key) is Fields for key, _ in node.edges):
        return False
    now = callables.cells(node.obj) if node.content else {}
    return all(now.get(name, NOTHING) is value for name, value in node.content.items())


def _same_class(trees: ModuleTrees, node: Node) -> bool:
    space = vars(node.obj)
    return all(space.get(name, NOTHING) is value for name, value in node.content.items())


def _renewed_module(trees: ModuleTrees, node: Node) -> Node | None:
    then: TreeContent = node.content
    if then.tree.is_still(then):
        return None
    tree = trees.tree(node.obj)
    if tree is not then.tree:
        raise Restart
    now = tree.take()
    same_values = now.values is then.values or pointers(now.values) == pointers(then.values)
    same_flags = now.flags is then.flags or now.flags == then.flags
    if same_values and same_flags and now.buffers == then.buffers:
        return None
    edges = node.edges if same_values else tree.objects(now)
    return Node(Kind.MODULE, node.obj, node.parent, node.key, now, edges)


def _renewed_ddp(trees: ModuleTrees, node: Node) -> Node | None:
    flags = ddp_flags(node.obj)
    module = node.obj._modules.get("module")
    if module is not node.edges[0][1] or len(node.edges) != 1 + bool(node.obj._comm_hooks):
        raise Restart
    return None if flags == node.content else Node(node.kind, node.obj, node.parent, node.key, flags, node.edges)


def _renewed_optimizer(trees: ModuleTrees, node: Node) -> Node | None:
    optimizer = node.obj
    if optimizer.param_groups is not node.edges[0][1] or trees.has_plain_state(optimizer):
        raise Restart
    fields = optimizer.__dict__
    if node.seen is not None and node.seen.still_true(fields):
        return None
    content, seen = optimizer_attributes(optimizer), Bindings(fields, of_module=False)
    if same_mapping(content, node.content):
        node.seen = seen
        return None
    edges = [("param_groups", optimizer.param_groups), *not_plain(content), *optimizer_hooks(optimizer)]
    return Node(node.kind, optimizer, node.parent, node.key, content, edges)


def _renewed_cycle(trees: ModuleTrees, node: Node) -> Node | None:
    place = cycles.place_of(node.obj)
    return None if place == node.content else Node(node.kind, node.obj, node.parent, node.key, place)


def _renewed_generator(trees: ModuleTrees, node: Node) -> Node | None:
    found = held_generators.stand(node.obj) if id(node.obj) not in trees.of_loops else None
    if found is None or not same_mapping(dict(not_plain(found.given)), dict(node.edges)):
        raise Restart
    if found.content == node.content and found.source is node.seen:
        return None
    return Node(node.kind, node.obj, node.parent, node.key, found.content, node.edges, found.source)


def _same_dict(trees: ModuleTrees, node: Node) -> bool:
    return same_mapping(node.obj, node.content)


def _restart(trees: ModuleTrees, node: Node) -> None:
    raise Restart


SAME: dict[Kind, Callable[[ModuleTrees, Node], bool]] = {
    Kind.LIST: _same_list,
    Kind.DICT: _same_dict,
    Kind.PARAM_GROUP: _same_dict,
    Kind.SET: lambda _, node: set(map(id, node.obj)) == set(map(id, node.content)),
    Kind.DEQUE: lambda _, node: same_items(node.obj, node.content),
    Kind.BYTEARRAY: lambda _, node: bool(node.obj == node.content),
    Kind.ATTRS: _same_attributes,
    Kind.TENSOR: _same_tensor,
    Kind.LOADER: _same_loader,
    Kind.DATASET: _same_dataset,
    Kind.REPLAY_POINT: lambda _, node: same_mapping(node.obj.place(), node.content),
    Kind.TORCH_GENERATOR: lambda _, node: small.take(node.obj.get_state()) == node.content,
    Kind.PYTHON_RANDOM: lambda _, node: node.obj.getstate() == node.content,
    Kind.NUMPY_RANDOM: lambda _, node: False,
    Kind.NDARRAY: _same_array,
    Kind.FUNCTION: _same_function,
    Kind.CLASS: _same_class,
}
"""Whether a node is as it was."""

RENEWED: dict[Kind, Callable[[ModuleTrees, Node], Node | None]] = {
    Kind.MODULE: _renewed_module,
    Kind.DDP: _renewed_ddp,
    Kind.OPTIMIZER: _renewed_optimizer,
    Kind.OPTIMIZER_STATE: _restart,
    Kind.CYCLE: _renewed_cycle,
    Kind.GENERATOR: _renewed_generator,
}
"""The same for kinds that leave a trace beside their nodes: the node anew, or None if it is as it was."""


def changed(node: Node) -> Node | None:
    """A list, a dict or an object as it is now, in one go since some are others in each step; None where it takes a visit."""
    obj, kind, cls = node.obj, node.kind, type(node.obj)
    content: Any
    edges: Edges
    if cls is list:
        if len(obj) >= LONG:
            return None
        content = obj[:]
        edges = [(place, value) for place, value in enumerate(content) if type(value) not in PLAIN]
    elif cls is dict:
        if len(obj) > LONG or {*map(type, obj)} - _STRINGS:
            return None
        content = obj.copy()
        edges = [(name, value) for name, value in content.items() if type(value) not in PLAIN]
        if kind is PARAM_GROUP:
            edges = [edge for edge in edges if edge[0] != "params"]
    elif kind is ATTRS and _only_fields(cls) and "<locals>" not in cls.__qualname__:
        content = obj.__dict__.copy()
        edges = [(name, value) for name, value in content.items() if type(value) not in PLAIN]
    else:
        return None
    return Node(kind, obj, node.parent, node.key, content, edges)


_STRINGS = frozenset({str})
_without_slots: dict[type, bool] = {}


def _only_fields(cls: type) -> bool:
    """Whether the attributes of instances are all in their `__dict__`."""
    known = _without_slots.get(cls)
    if known is None:
        slots = {name for c in cls.__mro__ for name in _slots(c)} - {"__dict__", "__weakref__"}
        known = _without_slots[cls] = cls.__dictoffset__ != 0 and not slots
    return known


def _slots(cls: type) -> Sequence[str]:
    slots = vars(cls).get("__slots__", ())
    return (slots,) if isinstance(slots, str) else tuple(slots)
