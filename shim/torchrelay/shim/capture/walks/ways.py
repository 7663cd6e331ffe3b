"""Find by which way an object is known after a walk that went on from an earlier one: the way that a walk from scratch would find.

That is the shortest one, and of several the first. A walk from scratch goes breadth first: of two ways of one length the first is
the one that turns off sooner to what comes sooner.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from torchrelay.shim.capture.handlers import COMES_AND_GOES
from torchrelay.shim.capture.state.change_detection import WalkAnew
from torchrelay.shim.capture.state.edges import flat
from torchrelay.shim.capture.state.host_state import HostState, Inside, LargeTensor, StateNode
from torchrelay.shim.capture.state.traces import rename_large
from torchrelay.shim.capture.values import callables
from torchrelay.shim.capture.values.kinds import GONE, Kind

Way = tuple[int, Any]
"""A node, and the key by which it leads further."""

_BY_THEIR_OWNERS = frozenset({Kind.PARAM_GROUP, Kind.OPTIMIZER_STATE})
"""Kinds that are known as parts of an optimizer, whichever way is shorter."""
_MOST_LOOKS = 512
"""The most looks at ways of objects: where more would be needed, a walk from scratch is not slower."""


class Ways:
    """Decide by which way an object is known where new ways lead to it, or its own way is no more."""

    def __init__(self, state: HostState, *, at_gate: bool) -> None:
        self._state = state
        self._at_gate = at_gate
        self._new: dict[int, list[Way]] = {}
        self._gone: list[tuple[Way, int]] = []
        self._left: set[int] = set()
        """Objects whose own way is no more, though others lead to them."""
        self._moved: set[int] = set()
        """Objects whose own way, or a part of it, is another one than before."""

    def found(self, parent: int, key: Any, child: int) -> None:
        self._new.setdefault(child, []).append((parent, key))

    def turned(self, parent: int, key: Any, child: int) -> None:
        """Note that the place where the parent turns off to the child has moved among its other places."""
        node = self._state.nodes[child]
        if (node.parent, node.key) == (parent, key):
            self._left.add(child)  # its way may come behind another one now

    def lost(self, parent: int, key: Any, child: int) -> None:
        self._gone.append(((parent, key), child))

    def dropped(self, number: int) -> None:
        self._new.pop(number, None)

    def steps(self, parent: int, key: Any) -> int:
        """Return how long a way is, as a walk from scratch goes it: what is looked through takes a step, too."""
        steps = 0
        while True:
            steps += 1
            while type(key) is Inside:
                steps = steps + 1
                key = key.key
            if parent < 0:
                return steps
            node = self._state.nodes[parent]
            parent = node.parent
            key = node.key

    def look_at_lost(self) -> None:
        """Look at the lost ways, before places of nodes are given to others. Raises WalkAnew."""
        for (parent, key), child in self._gone:
            node = self._state.nodes[child]
            if node.kind is GONE:
                continue
            if not self._state.holders[child]:
                raise WalkAnew  # its turn was over when it went
            if node.parent == parent and node.key == key:
                self._left.add(child)

    def settle(self) -> None:
        """Decide all ways, once all is found. Raises WalkAnew."""
        if self._at_gate:  # a boundary's paths hold
            for child in self._left:
                self._lead(child, self._best(child, self._all(child)))
            return
        waiting = deque(sorted(self._left))
        waiting.extend(child for child in self._new if child not in self._left and self._is_nearer_now(child))
        looks = 0
        while waiting:
            looks += 1
            if looks > _MOST_LOOKS:
                raise WalkAnew
            child = waiting.popleft()
            node = self._state.nodes[child]
            has_moved = child in self._left
            self._left.discard(child)
            if node.kind is GONE or node.parent < 0 or (node.kind in _BY_THEIR_OWNERS and not has_moved):
                continue
            has_moved = self._lead(child, self._best(child, self._all(child))) or has_moved
            if has_moved or node.parent in self._moved:
                self._moves(child)
                waiting.extend(self._below(child))

    def _is_nearer_now(self, child: int) -> bool:
        """Return whether a new way may be the one that the object is known by.

        Mostly none is: one more variable holds the object.
        """
        node = self._state.nodes[child]
        if node.parent < 0 or node.kind in _BY_THEIR_OWNERS:
            return False
        own = node.parent, node.key
        length = self.steps(*own)
        nearer = [way for way in self._new[child] if self.steps(*way) <= length]
        return bool(nearer) and self._best(child, [own, *nearer]) != own

    def _lead(self, child: int, way: Way) -> bool:
        """Make the object known by this way. Return whether that is another one than before."""
        state = self._state
        node = self._state.nodes[child]
        if (node.parent, node.key) == way:
            return False
        if way[0] > child:
            raise WalkAnew  # a new process makes objects in the order of their nodes
        state.nodes[child] = now = replace(node, parent=way[0], key=way[1])
        state.renewed.add(child)
        if isinstance(now.content, LargeTensor) and not now.content.freed:
            rename_large(state, now.obj, state.path(*way))
        return True

    def _moves(self, child: int) -> None:
        """Note that the way has changed.

        Raises WalkAnew where something is known by a name that the way is part of, or by ways' order.
        """
        state = self._state
        node = self._state.nodes[child]
        if node.kind not in COMES_AND_GOES or any(parent == child for parent, _ in state.places.values()):
            raise WalkAnew
        if state.bulk and not {id(value) for _, value in node.edges}.isdisjoint(id(obj) for obj, _, _ in state.bulk):
            raise WalkAnew
        if isinstance(node.content, LargeTensor) and not node.content.freed:
            rename_large(state, node.obj, state.path(child))
        self._moved.add(child)

    def _below(self, number: int) -> Iterator[int]:
        for key, value in self._state.nodes[number].edges:
            for _, obj in flat(key, value):
                child = self._state.index.get(id(obj))
                if child is not None and child != number:
                    yield child

    def _all(self, child: int) -> list[Way]:
        """Return all ways to the object that do not lead through itself, in no order."""
        obj = self._state.nodes[child].obj
        nodes = self._state.nodes
        parents = [p for p in dict.fromkeys(self._state.holders[child]) if not self._leads_through(p, child)]
        return [
            (parent, way)
            for parent in parents
            for k, v in nodes[parent].edges
            for way, found in flat(k, v)
            if found is obj
        ]

    def _leads_through(self, number: int, child: int) -> bool:
        while number >= 0 and number != child:
            number = self._state.nodes[number].parent
        return number == child

    def _best(self, child: int, ways: list[Way]) -> Way:
        """Return the way that a walk from scratch would find. Raises WalkAnew where there is none."""
        if not ways:
            raise WalkAnew
        lengths = [self.steps(*way) for way in ways]
        shortest = [way for way, length in zip(ways, lengths) if length == min(lengths)]
        return shortest[0] if len(shortest) == 1 else min(shortest, key=self._places)

    def _places(self, way: Way) -> list[int]:
        """Return where a way turns off, from the root on. Raises WalkAnew where that is not known."""
        number, key = way
        found: list[int] = []
        while number >= 0:
            node = self._state.nodes[number]
            if node.kind in _BY_THEIR_OWNERS:
                raise WalkAnew
            found += reversed(_places_of(node, key))
            if node.parent < 0:
                found.append(number)
            number = node.parent
            key = node.key
        found.reverse()
        return found


def _places_of(node: StateNode, key: Any) -> list[int]:
    """Return where a key of this node is among the others, and where it goes on within what is looked through."""
    inside = []
    while type(key) is Inside:
        inside.append(key.place)
        key = key.key
    place, value = next(((n, v) for n, (k, v) in enumerate(node.edges) if k is key or k == key), (-1, None))
    found = [place]
    while inside:
        step = inside.pop()
        place, value = next(((n, v) for n, (k, v) in enumerate(callables.parts(value)) if k == step), (-1, None))
        found.append(place)
    if -1 in found:
        raise WalkAnew
    return found
