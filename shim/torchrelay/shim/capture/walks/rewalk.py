"""Go on from an earlier walk: look whether each object is unchanged, and only go into those that are not.

From step to step hardly anything changes: a few counters, a loss, the batch. Nodes of unchanged objects are taken over, with what
was written of them. A change of the shape of the whole (a model, an optimizer, an object with others below it that is known by
another path than before) takes a walk from scratch: `WalkAnew`. So a node's path is always the one that a walk from scratch would
find, in all ranks.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from heapq import heapify, heappop, heappush
from itertools import chain, starmap
from types import FrameType
from typing import Any

import torch

from torchrelay.shim.adapters.cpython.frames import MODULE
from torchrelay.shim.adapters.tensors.storages import unseen
from torchrelay.shim.capture.handlers import COMES_AND_GOES, HANDLERS, RENEWED, SAME
from torchrelay.shim.capture.handlers.handler import nothing
from torchrelay.shim.capture.handlers.variables import iterators_of_loops
from torchrelay.shim.capture.models import aliases
from torchrelay.shim.capture.models.modules import ModuleTrees
from torchrelay.shim.capture.state.change_detection import WalkAnew, changed
from torchrelay.shim.capture.state.edges import (
    MAY_BE_LOOKED_THROUGH,
    Edges,
    are_turned,
    edge_changes,
    flat,
    holders_of,
    not_plain,
    same_mapping,
)
from torchrelay.shim.capture.state.host_state import HostState, LargeTensor, StateNode, versions_now
from torchrelay.shim.capture.state.parts import (
    NONE,
    Bindings,
    dead_globals,
    global_names,
)
from torchrelay.shim.capture.state.traces import WITHOUT_NODE, forget, forget_large
from torchrelay.shim.capture.values.base_types import length_of
from torchrelay.shim.capture.values.kinds import FRAME, GLOBALS, GONE, LIST, PLAIN, TENSOR, Kind, kind_of
from torchrelay.shim.capture.values.long_list import LONG
from torchrelay.shim.capture.values.small import TensorValue, is_small
from torchrelay.shim.capture.walks.walk import Walk
from torchrelay.shim.capture.walks.watched import Watched
from torchrelay.shim.capture.walks.ways import Ways
from torchrelay.shim.tensors.tensor_versions import version_of

_WITHOUT_NODES = frozenset({Kind.OPAQUE, Kind.PLAIN, Kind.PROMISE, Kind.FUNCTION, Kind.CLASS})
"""Kinds whose objects may have no node: functions and classes with nothing behind them."""


def _contents_of(node: StateNode) -> Collection[torch.Tensor]:
    """Return the tensors that a node holds by value."""
    if node.kind is TENSOR and isinstance(node.content, TensorValue):
        return (node.obj,)
    return node.content.tree.small_buffers.values() if node.kind is Kind.MODULE else ()


_WITHOUT_STATE = frozenset({Kind.OPAQUE, Kind.PLAIN, Kind.PROMISE})
_capture_tensor = HANDLERS[TENSOR].capture or nothing
_GONE = StateNode(Kind.GONE, None, -1, None, None)


class Rewalk(Walk):
    def __init__(
        self,
        trees: ModuleTrees,
        base: HostState,
        *,
        at_gate: bool,
        aside: bool = False,
        within: Collection[int] | None = None,
    ) -> None:
        """Prepare a walk that goes on from `base`. `aside`: the next walk goes on from `base`, too, and not from this one's state.

        `within`: the nodes that are looked at, beside what is found to be new below them; all unless given.
        """
        if not base.holders:
            base.holders = holders_of(base)
        super().__init__(trees, base if at_gate else None, base.fork())
        self._base = base
        self._within = within
        self._is_gone_on_from = not (at_gate or aside)
        self._pending: int | None = None
        """The node that is looked into again, until the visit has answered."""
        self._ways = Ways(self.state, at_gate=at_gate)
        self._gone_large: set[int] = set()
        """Large tensors that nothing leads to any more, by id."""
        self._found: list[tuple[int, Any, Any]] = []
        """Edges to objects that have no node yet."""
        self._to_look_at: list[int] = []
        """Numbers of nodes that may be others than they were, as a heap."""

    def run(self, frames: Sequence[FrameType], module_globals: Mapping[str, dict[str, Any]]) -> HostState:
        """Return the state, as a walk does. `frames` may have more than the base's, deeper ones. Raises WalkAnew."""
        self.trees.is_at_gate = self._before is not None
        self.trees.look_for_owners_anew()
        within = self._within
        if within is None:
            first = self._look_at_frames(frames)
            self._look_at_globals(first, frames, module_globals)
            if id(self.trees.loops) not in self._base.index and iterators_of_loops(self.trees):
                raise WalkAnew
            holds = self.trees.settings.holds
            if id(holds) not in self._base.index and holds.now():
                raise WalkAnew
        watched = self._watched()
        self._to_look_at = [n for n in watched.look() if within is None or n in within] + self._to_look_at
        on_device = self._set_device_aside()
        self._look_at_all()
        with self.trees.reads.ahead(self._to_read(on_device)):
            self._to_look_at += on_device
            self._look_at_all()
            if self._base.bulk and any(length_of(obj) != length for obj, length, _ in self._base.bulk):
                raise WalkAnew
            if self._base.sizes != [*map(len, self._base.spaces)]:
                raise WalkAnew
            self._ways.look_at_lost()
            if self._gone_large:
                forget_large(self.state, self._gone_large)
            if self._found:
                self._add_found()
            self.name_without_order()
        state = self.state
        self._ways.settle()
        if self._before is None:
            if self._is_gone_on_from and watched.is_worn():
                self.trees.watched = None
            elif self._is_gone_on_from:
                watched.go_on(state)
            # Only a rewind asks for versions, and it goes to the boundary.
            if state.versions:
                state.versions = [(tensor, version_of(tensor), name) for tensor, _, name in state.versions]
            trees = self.trees.large_of(state.roots)  # others than before where some were bound anew
            state.tree_versions = versions_now([(large, []) for large in trees])
        return state

    def _set_device_aside(self) -> list[int]:
        """Return the nodes whose content is on a device, and look at them last.

        The device goes on working while the host looks at the rest, and is waited for once.
        """
        if not torch.cuda.is_initialized():
            return []
        nodes = self._base.nodes
        with unseen():
            found = {n for n in self._to_look_at if any(tensor.is_cuda for tensor in _contents_of(nodes[n]))}
        self._to_look_at = [number for number in self._to_look_at if number not in found]
        return [*found]

    def _look_at_all(self) -> None:
        heapify(self._to_look_at)
        while self._to_look_at:
            number = heappop(self._to_look_at)
            self._look_at(number, self._base.nodes[number])

    def _to_read(self, on_device: list[int]) -> Iterator[torch.Tensor]:
        """Yield the small tensors of these nodes, and those that the step has made."""
        for number in on_device:
            yield from _contents_of(self._base.nodes[number])
        for _, _, obj in self._found:
            if type(obj) is torch.Tensor and is_small(obj):
                yield obj

    def _add_found(self) -> None:
        """Add nodes for the objects that are not known, in the order of their paths."""
        state = self.state
        if len(self._found) > 1:
            self._found.sort(key=lambda edge: self._ways.steps(edge[0], edge[1]))
        self.queue.extend(self._found)
        self._work_off()
        if len(state.free) > 64 + len(state.nodes) // 2:
            raise WalkAnew
        known = self._base.index
        aliases.find(state, self.trees, [n for n in state.renewed if id(state.nodes[n].obj) not in known])

    def _watched(self) -> Watched:
        watched: Watched | None = self.trees.watched
        if watched is None or watched.state is not self._base:
            watched = self.trees.watched = Watched(self.trees, self._base)
        return watched

    def _look_at(self, number: int, node: StateNode) -> None:
        if number in self.state.renewed or node.kind is GONE:
            return
        if not self.state.holders[number]:
            self._drop(number, node)
            return
        kind = node.kind
        same = SAME.get(kind)
        if same is not None:
            if not same(self.trees, node):
                now = None if self._of_threads.has_theirs(node.obj) else changed(node)
                if now is None:
                    self._visit_again(number, node)
                else:
                    self._replace(number, now)
        elif kind in RENEWED:
            now = RENEWED[kind](self.trees, node)
            if now is not None:
                self._replace(number, now)

    def _let_go(self, holder: int, number: int) -> None:
        """Note that an edge to this node is gone. Without any edge the node is dropped."""
        held = [*self.state.holders[number]]
        held.remove(holder)
        self.state.holders[number] = tuple(held)
        if not held:
            heappush(self._to_look_at, number)

    # Roots.

    def _look_at_frames(self, frames: Sequence[FrameType]) -> int:
        """Look at the frames. Return how many nodes of the base are frames: they come first."""
        known = 0
        nodes = self._base.nodes
        for place, frame in enumerate(frames):
            if frame.f_code.co_name == MODULE:
                continue
            names = self._names(frame)
            node = nodes[known] if known < len(nodes) else _GONE
            if node.kind is FRAME:
                if node.obj is not frame:  # the function was called again
                    del self.state.index[id(node.obj)]
                    self.state.index[id(frame)] = known
                if node.obj is not frame or not same_mapping(names, node.content):
                    key = place, frame.f_code.co_name
                    self._replace(known, StateNode(FRAME, frame, -1, key, names, not_plain(names)))
                known += 1
            elif self._before is None:
                raise WalkAnew
            else:
                number = self.add(FRAME, frame, -1, (place, frame.f_code.co_name), names)
                edges = self.state.nodes[number].edges = not_plain(names)
                self._connect(number, edges, [])
        if known < len(nodes) and nodes[known].kind is FRAME:
            raise WalkAnew
        return known

    def _look_at_globals(
        self, first: int, frames: Sequence[FrameType], module_globals: Mapping[str, dict[str, Any]]
    ) -> None:
        """Look at the modules' globals. `first`: where the base's nodes of modules begin."""
        nodes = self._base.nodes
        dead = dead_globals(frames)
        last = first + len(module_globals)
        if last > len(nodes) or (last < len(nodes) and nodes[last].kind is GLOBALS):
            raise WalkAnew
        for number, (name, values) in enumerate(module_globals.items(), first):
            node = nodes[number]
            if node.obj is not values or node.key != name:
                raise WalkAnew
            dead_here = dead.get(id(values), NONE)
            if node.seen.still_true(values, dead_here):
                continue
            names = global_names(values, dead_here, self.state.without_state)
            seen = Bindings(values, dead_here, of_module=True)
            if same_mapping(names, node.content):
                node.seen = seen
                continue
            self._replace(number, StateNode(GLOBALS, values, -1, name, names, not_plain(names), seen))

    # Objects that have changed.

    def _visit_again(self, number: int, node: StateNode) -> None:
        self._pending = number
        capture = HANDLERS[node.kind].capture
        assert capture is not None
        capture(self, node.kind, node.obj, node.parent, node.key)
        self.queue.clear()
        if self._pending is not None or isinstance(self.state.nodes[number].content, LargeTensor):
            raise WalkAnew
        self._replace(number, self.state.nodes[number])

    def add(self, kind: Kind, obj: Any, parent: int, key: Any, content: Any) -> int:
        state = self.state
        if self._pending is not None:
            number = self._pending
            self._pending = None
            state.renewed.add(number)
            state.nodes[number] = StateNode(kind, obj, parent, key, content)
            return number
        number = next((n for n in state.free if n > parent), -1) if parent >= 0 and state.free else -1
        if number >= 0:
            state.free.remove(number)
            state.renewed.add(number)
            state.nodes[number] = StateNode(kind, obj, parent, key, content)
            state.holders[number] = (parent,)
            state.index[id(obj)] = number
            self._note(number, kind)
            return number
        state.holders.append((parent,))
        state.renewed.add(len(state.nodes))
        return super().add(kind, obj, parent, key, content)

    def _replace(self, number: int, now: StateNode) -> None:
        then = self._base.nodes[number].edges
        gone, new = edge_changes(then, now.edges)
        self.state.nodes[number] = now
        self.state.renewed.add(number)
        if self._before is None and now.kind is not LIST and are_turned(then, now.edges):
            for way, obj in chain.from_iterable(starmap(flat, now.edges)):
                child = self._base.index.get(id(obj))
                if child is not None:
                    self._ways.turned(number, way, child)
        if gone and new:
            gone, new = self._swap(number, gone, new)
        if not gone and not new:
            return
        before = self._children(number, gone)
        for _, child in before:
            self._let_go(number, child)
        after = self._connect(number, new, before)
        for way, child in before:
            if (way, child) not in after:
                self._ways.lost(number, way, child)

    def _swap(self, number: int, gone: Edges, new: Edges) -> tuple[Edges, Edges]:
        """Let a list in the place of another one take over its node: schedulers make one in each step. Return the other edges."""
        state = self.state
        before = dict(gone)
        left = []
        for key, value in new:
            then = before.get(key)
            child = state.index.get(id(then)) if type(value) is list and type(then) is list else None
            if (
                child is None
                or not len(state.holders[child]) == 1 == len(self._base.holders[child])
                or (state.nodes[child].parent, state.nodes[child].key) != (number, key)
                or state.nodes[child].edges
                or len(value) >= LONG
                or not PLAIN.issuperset(map(type, value))
                or id(value) in state.index
            ):
                left.append((key, value))
                continue
            state.nodes[child] = StateNode(LIST, value, number, key, value[:])
            del state.index[id(then)], before[key]
            state.index[id(value)] = child
            state.renewed.add(child)
        return list(before.items()), left

    def _drop(self, number: int, node: StateNode) -> None:
        """Drop the node: nothing leads to it any more."""
        state = self.state
        if node.kind not in COMES_AND_GOES:
            raise WalkAnew
        if node.kind is TENSOR and not isinstance(node.content, TensorValue):
            self._gone_large.add(id(node.obj))
        self._ways.dropped(number)
        state.nodes[number] = _GONE
        state.renewed.add(number)
        state.drawn_from.discard(number)
        state.generators.discard(number)
        del state.index[id(node.obj)]
        state.free.append(number)
        for way, child in self._children(number, node.edges):
            self._let_go(number, child)
            self._ways.lost(number, way, child)

    def _children(self, number: int, edges: Edges) -> list[tuple[Any, int]]:
        """Return where lost edges of this node led to. Raises WalkAnew where it is not known what an object has left behind."""
        found = []
        for key, value in edges:
            child = self._base.index.get(id(value))
            if child is not None:  # what has a node is never looked through
                found.append((key, child))
                continue
            for way, obj in flat(key, value):
                child = self._base.index.get(id(obj))
                if child is not None:
                    found.append((way, child))
                    continue
                kind = kind_of(type(obj))
                if kind in WITHOUT_NODE:
                    forget(self.state, number, way, obj)
                elif not (id(obj) in self._base.covered or kind in _WITHOUT_NODES):
                    raise WalkAnew
        return found

    def _connect(self, number: int, edges: Edges, before: list[tuple[Any, int]]) -> set[tuple[Any, int]]:
        """Count new edges of a node to known objects, and return them. `before`: edges that it has lost."""
        after: set[tuple[Any, int]] = set()
        if not edges:
            return after
        for key, value in edges:
            for way, obj in [(key, value)] if type(value) is torch.Tensor else flat(key, value):
                child = self.state.index.get(id(obj))
                if child is None:
                    self._found.append((number, way, obj))
                    continue
                self.state.holders[child] += (number,)
                after.add((way, child))
                if (way, child) not in before:
                    self._ways.found(number, way, child)
        return after

    def _one(self, parent: int, key: Any, obj: Any) -> None:
        state = self.state
        known = state.index.get(id(obj))
        if known is not None:
            state.holders[known] += (parent,)
            self._ways.found(parent, key, known)
            return
        kind = kind_of(type(obj))
        if kind in _WITHOUT_STATE or (id(obj) in state.covered and kind is not Kind.DDP):
            return
        if kind is TENSOR:
            if isinstance(obj, torch.nn.Parameter) or not self.trees.is_bound(obj):
                _capture_tensor(self, kind, obj, parent, key)
            return
        if kind not in COMES_AND_GOES and kind not in MAY_BE_LOOKED_THROUGH and kind not in WITHOUT_NODE:
            raise WalkAnew
        super()._one(parent, key, obj)

    def define(self, space: Mapping[str, Any], cls: type | None) -> None:
        """Do nothing: what a step defines may be gone after it, and nothing waits for attributes of it."""
