"""A walk that goes on from an earlier one: looks whether each object is as it was, and only goes into those that are not.

From step to step hardly anything changes: a few counters, a loss. Nodes that are as they were are taken over, with what was
written of them. Whatever changes the shape of the whole (a model, an optimizer, an object known by another path than before)
takes a walk from scratch: `Restart`. So a node's path is always the one that a walk from scratch would find, in all ranks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from operator import is_
from types import FrameType
from typing import Any

import torch

from torchrelay.shim.adapters import cycles, held_generators
from torchrelay.shim.adapters import frames as frame_access
from torchrelay.shim.adapters.dtensor import local
from torchrelay.shim.adapters.list_pointers import pointers
from torchrelay.shim.capture import callables, small
from torchrelay.shim.capture.host_state import Fields, HostState, Inside, LargeTensor, Node
from torchrelay.shim.capture.kinds import PLAIN, Kind, kind_of
from torchrelay.shim.capture.long_list import LongContent
from torchrelay.shim.capture.modules import ModuleTrees, TreeContent
from torchrelay.shim.capture.parts import (
    NONE,
    Bindings,
    attributes,
    dataset_parts,
    ddp_flags,
    dead_globals,
    global_names,
    live_names,
    loader_parts,
    optimizer_attributes,
    optimizer_hooks,
)
from torchrelay.shim.capture.walk import Walk

_GONE = Node(Kind.GONE, None, -1, None, None)
_COMES_AND_GOES = frozenset(
    {Kind.LIST, Kind.DICT, Kind.SET, Kind.DEQUE, Kind.BYTEARRAY, Kind.ATTRS, Kind.TENSOR, Kind.NDARRAY}
    | {Kind.FUNCTION, Kind.CLASS}
    | {
        Kind.TORCH_GENERATOR,
        Kind.PYTHON_RANDOM,
        Kind.NUMPY_RANDOM,
        Kind.LOADER,
        Kind.LOADER_ITER,
        Kind.DATASET,
        Kind.REPLAY_POINT,
    }
)
"""Kinds that leave no trace in a host state beside their node."""


_MAY_BE_LOOKED_THROUGH = (Kind.TUPLE, Kind.THROUGH, Kind.FUNCTION)
_WITHOUT_NODES = (Kind.OPAQUE, Kind.PLAIN, Kind.FUNCTION, Kind.CLASS)
"""Kinds whose objects may have no node: functions and classes with nothing behind them."""

Edges = list[tuple[Any, Any]]
_NOTHING = object()


class Restart(Exception):
    """The earlier walk is no basis; always answered with a walk from scratch."""


def same_items(now: Any, then: Any) -> bool:
    """Whether two sequences hold the same objects."""
    return len(now) == len(then) and all(map(is_, now, then))


def same_mapping(now: Mapping[Any, Any], then: Mapping[Any, Any]) -> bool:
    return len(now) == len(then) and all(map(is_, now.values(), then.values())) and all(map(is_, now, then))


def edge_changes(then: Edges, now: Edges) -> tuple[Edges, Edges]:
    """Edges that are no more, and those that are new. A key stands for one edge."""
    if then is now:
        return [], []
    gone = dict(then)
    new = []
    for key, value in now:
        if gone.get(key, _NOTHING) is value:
            del gone[key]
        else:
            new.append((key, value))
    return list(gone.items()), new


def flat(key: Any, value: Any) -> Iterator[tuple[Any, Any]]:
    """What a value means for the walk: tuples, bound methods and their like are looked through."""
    cls = type(value)
    if cls in PLAIN:
        return
    if kind_of(cls) in _MAY_BE_LOOKED_THROUGH and callables.is_looked_through(value):
        for place, element in callables.parts(value):
            yield from flat(Inside(key, place), element)
    else:
        yield key, value


def not_plain(content: Mapping[Any, Any]) -> Edges:
    return [(key, value) for key, value in content.items() if type(value) not in PLAIN]


class Rewalk(Walk):
    def __init__(self, trees: ModuleTrees, base: HostState, *, at_gate: bool) -> None:
        if not base.uses:
            base.uses = _count_uses(base)
        super().__init__(trees, base if at_gate else None, base.fork())
        self._base = base
        self._pending: int | None = None
        """The node that is looked into again, until the visit has answered."""
        self._lost: list[tuple[int, Any, int]] = []
        """Edges that are no more: from a node, by a key, to a node."""
        self._found: list[tuple[int, Any, Any]] = []
        """Edges to objects that are not known."""

    def run(self, frames: Sequence[FrameType], module_globals: Mapping[str, dict[str, Any]]) -> HostState:
        """As a walk's; `frames` may have more than the base's, deeper ones. Raises Restart."""
        first = self._look_at_frames(frames)
        self._look_at_globals(first, frames, module_globals)
        uses = self.state.uses
        for number, node in enumerate(self._base.nodes):
            if uses[number] == 0:
                self._drop(number, node)
                continue
            kind = node.kind
            same = _SAME.get(kind)
            if same is not None:
                if not same(self, node):
                    self._visit_again(number, node)
            elif kind in _RENEWED:
                now = _RENEWED[kind](self, node)
                if now is not None:
                    self._replace(number, now)
        if any(len(obj) != length for obj, length, _ in self._base.bulk):
            raise Restart
        if self._base.sizes != [*map(len, self._base.spaces)]:
            raise Restart
        if self._lost:
            self._check_lost()
        if self._found:
            self._queue.extend(sorted(self._found, key=lambda edge: self._depth(edge[0])))
            self._work_off()
            if len(self.state.free) > 64 + len(self.state.nodes) // 2:
                raise Restart
        state = self.state
        if self._before is None:  # only a rewind asks for them, and it goes to the boundary
            state.versions = [(tensor, tensor._version, name) for tensor, _, name in state.versions]
            state.tree_versions = [(large, [t._version for _, t in large]) for large, _ in state.tree_versions]
        return state

    # Roots.

    def _look_at_frames(self, frames: Sequence[FrameType]) -> int:
        """Returns how many nodes of the base are frames: they come first."""
        known = 0
        for place, frame in enumerate(frames):
            if frame_access.is_module_frame(frame):
                continue
            names = live_names(frame)
            node = self._base.nodes[known] if known < len(self._base.nodes) else _GONE
            if node.kind is Kind.FRAME:
                if node.obj is not frame:
                    raise Restart
                if not same_mapping(names, node.content):
                    self._replace(known, Node(Kind.FRAME, frame, -1, node.key, names, not_plain(names)))
                known += 1
            elif self._before is None:
                raise Restart
            else:
                number = self._add(Kind.FRAME, frame, -1, (place, frame.f_code.co_name), names)
                edges = self.state.nodes[number].edges = not_plain(names)
                self._connect(number, edges, [])
        if known < len(self._base.nodes) and self._base.nodes[known].kind is Kind.FRAME:
            raise Restart
        return known

    def _look_at_globals(
        self, first: int, frames: Sequence[FrameType], module_globals: Mapping[str, dict[str, Any]]
    ) -> None:
        """`first`: where the base's nodes of modules begin."""
        nodes, dead = self._base.nodes, dead_globals(frames)
        last = first + len(module_globals)
        if last > len(nodes) or (last < len(nodes) and nodes[last].kind is Kind.GLOBALS):
            raise Restart
        for number, (name, values) in enumerate(module_globals.items(), first):
            node = nodes[number]
            if node.obj is not values or node.key != name:
                raise Restart
            dead_here = dead.get(id(values), NONE)
            if node.seen.still_true(values, dead_here):
                continue
            names = global_names(values, dead_here, self.state.without_state)
            now = Node(Kind.GLOBALS, values, -1, name, names, not_plain(names), Bindings.of(values, dead_here))
            if same_mapping(names, node.content):
                now.written = node.written
            self._replace(number, now)

    # Whether a node is as it was.

    def _same_list(self, node: Node) -> bool:
        content = node.content
        if isinstance(content, LongContent):
            now = self._trees.long_lists.look(node.obj)
            return now is not None and now.seen is content.seen and now.length == content.length
        return same_items(node.obj, content)

    def _same_attributes(self, node: Node) -> bool:
        return same_mapping(vars(node.obj) if _only_fields(type(node.obj)) else attributes(node.obj), node.content)

    def _same_tensor(self, node: Node) -> bool:
        content = node.content
        if isinstance(content, small.TensorValue):
            return small.take(node.obj) == content
        if isinstance(content, LargeTensor) and tuple(local(node.obj).shape) != content.shape:
            raise Restart
        return True

    def _same_dataset(self, node: Node) -> bool:
        plain, below = dataset_parts(node.obj)
        return same_mapping(plain, node.content) and same_mapping(below, dict(node.edges))

    def _same_array(self, node: Node) -> bool:
        now, then = node.obj, node.content
        return bool(now.shape == then.shape and now.dtype == then.dtype and now.tobytes() == then.tobytes())

    def _same_function(self, node: Node) -> bool:
        if bool(callables.fields(node.obj)) != any(type(key) is Fields for key, _ in node.edges):
            return False
        now = callables.cells(node.obj) if node.content else {}
        return all(now.get(name, _NOTHING) is value for name, value in node.content.items())

    def _same_class(self, node: Node) -> bool:
        space = vars(node.obj)
        return all(space.get(name, _NOTHING) is value for name, value in node.content.items())

    def _renewed_module(self, node: Node) -> Node | None:
        then: TreeContent = node.content
        tree = self._trees.tree(node.obj)
        if tree is not then.tree:
            raise Restart
        now = tree.take()
        same_values = pointers(now.values) == pointers(then.values)
        if same_values and now.flags == then.flags and now.buffers == then.buffers:
            return None
        edges = node.edges if same_values else tree.objects(now)
        return Node(Kind.MODULE, node.obj, node.parent, node.key, now, edges)

    def _renewed_ddp(self, node: Node) -> Node | None:
        flags = ddp_flags(node.obj)
        module = node.obj._modules.get("module")
        if module is not node.edges[0][1] or len(node.edges) != 1 + bool(node.obj._comm_hooks):
            raise Restart
        return None if flags == node.content else Node(node.kind, node.obj, node.parent, node.key, flags, node.edges)

    def _renewed_optimizer(self, node: Node) -> Node | None:
        optimizer = node.obj
        if optimizer.param_groups is not node.edges[0][1] or self._trees.has_plain_state(optimizer):
            raise Restart
        fields = optimizer.__dict__
        if node.seen is not None and node.seen.still_true(fields):
            return None
        content, seen = optimizer_attributes(optimizer), Bindings.of(fields)
        if same_mapping(content, node.content):
            node.seen = seen
            return None
        edges = [("param_groups", optimizer.param_groups), *not_plain(content), *optimizer_hooks(optimizer)]
        return Node(node.kind, optimizer, node.parent, node.key, content, edges)

    def _renewed_cycle(self, node: Node) -> Node | None:
        place = cycles.place_of(node.obj)
        return None if place == node.content else Node(node.kind, node.obj, node.parent, node.key, place)

    def _renewed_generator(self, node: Node) -> Node | None:
        found = held_generators.stand(node.obj) if id(node.obj) not in self._trees.of_loops else None
        if found is None or not same_mapping(dict(not_plain(found.given)), dict(node.edges)):
            raise Restart
        if found.content == node.content and found.source is node.seen:
            return None
        return Node(node.kind, node.obj, node.parent, node.key, found.content, node.edges, found.source)

    # What is not.

    def _visit_again(self, number: int, node: Node) -> None:
        self._pending = number
        self._visit_one(node.kind, node.obj, node.parent, node.key)
        self._queue.clear()
        if self._pending is not None or isinstance(self.state.nodes[number].content, LargeTensor):
            raise Restart
        self._replace(number, self.state.nodes[number])

    def _add(self, kind: Kind, obj: Any, parent: int, key: Any, content: Any) -> int:
        state = self.state
        if self._pending is not None:
            number, self._pending = self._pending, None
            state.nodes[number] = Node(kind, obj, parent, key, content)
            return number
        number = next((n for n in state.free if n > parent), -1) if parent >= 0 else -1
        if number >= 0:
            state.free.remove(number)
            state.nodes[number], state.uses[number] = Node(kind, obj, parent, key, content), 1
            state.index[id(obj)] = number
            return number
        state.uses.append(1)
        return super()._add(kind, obj, parent, key, content)

    def _replace(self, number: int, now: Node) -> None:
        gone, new = edge_changes(self._base.nodes[number].edges, now.edges)
        self.state.nodes[number] = now
        before = self._children(gone)
        for _, child in before:
            self.state.uses[child] -= 1
        after = self._connect(number, new, before)
        self._lost += [(number, way, child) for way, child in before if (way, child) not in after]

    def _drop(self, number: int, node: Node) -> None:
        """Nothing leads to it any more."""
        state = self.state
        if node.kind not in _COMES_AND_GOES or isinstance(node.content, LargeTensor):
            raise Restart
        state.nodes[number] = _GONE
        del state.index[id(node.obj)]
        state.free.append(number)
        for way, child in self._children(node.edges):
            state.uses[child] -= 1
            self._lost.append((number, way, child))

    def _children(self, edges: Edges) -> list[tuple[Any, int]]:
        """Raises Restart where an edge leads to something that left a trace beside the nodes."""
        found = []
        for key, value in edges:
            for way, obj in flat(key, value):
                child = self._base.index.get(id(obj))
                if child is not None:
                    found.append((way, child))
                elif id(obj) not in self._base.covered and kind_of(type(obj)) not in _WITHOUT_NODES:
                    raise Restart
        return found

    def _connect(self, number: int, edges: Edges, before: list[tuple[Any, int]]) -> set[tuple[Any, int]]:
        """Counts new edges of a node to known objects, and returns them. `before`: edges that it has lost."""
        after = set()
        for key, value in edges:
            for way, obj in flat(key, value):
                child = self.state.index.get(id(obj))
                if child is None:
                    self._found.append((number, way, obj))
                    continue
                self.state.uses[child] += 1
                after.add((way, child))
                if (way, child) not in before:
                    self._check_path(number, child)
        return after

    def _check_lost(self) -> None:
        for parent, key, child in self._lost:
            node = self.state.nodes[child]
            if node.kind is Kind.GONE:
                continue
            if self.state.uses[child] == 0 or (node.parent == parent and node.key == key):
                raise Restart  # it is still there, but not where it was; or its turn was over when it went

    def _check_path(self, parent: int, child: int) -> None:
        """A new way to a known object must not be shorter than the one that it is known by; at a gate paths are not compared."""
        if self._before is None and self._depth(parent) < self._depth(child):
            raise Restart

    def _depth(self, number: int) -> int:
        depth = 0
        while (number := self.state.nodes[number].parent) >= 0:
            depth += 1
        return depth

    def _one(self, parent: int, key: Any, obj: Any) -> None:
        state = self.state
        known = state.index.get(id(obj))
        if known is not None:
            state.uses[known] += 1
            self._check_path(parent, known)
            return
        kind = kind_of(type(obj))
        if id(obj) in state.covered or kind in (Kind.OPAQUE, Kind.PLAIN):
            return
        if (kind not in _COMES_AND_GOES and kind not in _MAY_BE_LOOKED_THROUGH) or isinstance(obj, torch.nn.Parameter):
            raise Restart
        super()._one(parent, key, obj)
        if kind not in _MAY_BE_LOOKED_THROUGH and kind is not Kind.CLASS:
            number = state.index.get(id(obj))
            if number is None or isinstance(state.nodes[number].content, LargeTensor):
                raise Restart

    def _define(self, space: Mapping[str, Any], cls: type | None) -> None:
        """What a step defines may be gone after it: nobody waits for attributes of it."""


def _same_dict(walk: Rewalk, node: Node) -> bool:
    return same_mapping(node.obj, node.content)


def _restart(walk: Rewalk, node: Node) -> None:
    raise Restart


_SAME: dict[Kind, Callable[[Rewalk, Node], bool]] = {
    Kind.LIST: Rewalk._same_list,
    Kind.DICT: _same_dict,
    Kind.PARAM_GROUP: _same_dict,
    Kind.SET: lambda _, node: set(map(id, node.obj)) == set(map(id, node.content)),
    Kind.DEQUE: lambda _, node: same_items(node.obj, node.content),
    Kind.BYTEARRAY: lambda _, node: bool(node.obj == node.content),
    Kind.ATTRS: Rewalk._same_attributes,
    Kind.TENSOR: Rewalk._same_tensor,
    Kind.LOADER: lambda _, node: same_mapping(loader_parts(node.obj), dict(node.edges)),
    Kind.DATASET: Rewalk._same_dataset,
    Kind.REPLAY_POINT: lambda _, node: same_mapping(node.obj.place(), node.content),
    Kind.TORCH_GENERATOR: lambda _, node: small.take(node.obj.get_state()) == node.content,
    Kind.PYTHON_RANDOM: lambda _, node: node.obj.getstate() == node.content,
    Kind.NUMPY_RANDOM: lambda _, node: False,
    Kind.NDARRAY: Rewalk._same_array,
    Kind.FUNCTION: Rewalk._same_function,
    Kind.CLASS: Rewalk._same_class,
}
"""Whether a node is as it was."""

_RENEWED: dict[Kind, Callable[[Rewalk, Node], Node | None]] = {
    Kind.MODULE: Rewalk._renewed_module,
    Kind.DDP: Rewalk._renewed_ddp,
    Kind.OPTIMIZER: Rewalk._renewed_optimizer,
    Kind.OPTIMIZER_STATE: _restart,
    Kind.CYCLE: Rewalk._renewed_cycle,
    Kind.GENERATOR: Rewalk._renewed_generator,
}
"""The same for kinds that leave a trace beside their nodes: the node anew, or None if it is as it was."""

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


def _count_uses(state: HostState) -> list[int]:
    uses = [int(node.parent < 0) for node in state.nodes]
    for node in state.nodes:
        for key, value in node.edges:
            for _, obj in flat(key, value):
                child = state.index.get(id(obj))
                if child is not None:
                    uses[child] += 1
    return uses
