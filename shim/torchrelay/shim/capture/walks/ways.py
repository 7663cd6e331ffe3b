"""By which way an object is known after a walk that went on from an earlier one: by the way that a walk from scratch would find.

That is the shortest one, and of several the first. An object with nothing below it can be led to by another way than before; where
something hangs below it, that would be known by other ways too, which takes a walk from scratch.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from torchrelay.shim.capture.handlers import COMES_AND_GOES
from torchrelay.shim.capture.state.change_detection import WalkAnew
from torchrelay.shim.capture.state.edges import flat
from torchrelay.shim.capture.state.host_state import HostState, Inside, LargeTensor, StateNode
from torchrelay.shim.capture.state.traces import rename_large
from torchrelay.shim.capture.values.kinds import GONE, PARAM_GROUP

Way = tuple[int, Any]
"""A node, and the key by which it leads further."""


class Ways:
    """Those that are new, and those that are no more, to objects that have a node."""

    def __init__(self, state: HostState, *, at_gate: bool) -> None:
        self._state, self._at_gate = state, at_gate
        self._new: dict[int, list[Way]] = {}
        self._gone: list[tuple[Way, int]] = []
        self._left: dict[int, int] = {}
        """Objects whose own way is no more, though others lead to them, by number; with the node that way came from."""

    def found(self, parent: int, key: Any, child: int) -> None:
        self._new.setdefault(child, []).append((parent, key))

    def lost(self, parent: int, key: Any, child: int) -> None:
        self._gone.append(((parent, key), child))

    def dropped(self, number: int) -> None:
        self._new.pop(number, None)

    def steps(self, parent: int, key: Any) -> int:
        """How long a way is, as a walk from scratch goes it: what is looked through takes a step, too."""
        steps = 0
        while True:
            steps += 1
            while type(key) is Inside:
                steps, key = steps + 1, key.key
            if parent < 0:
                return steps
            node = self._state.nodes[parent]
            parent, key = node.parent, node.key

    def look_at_lost(self) -> None:
        """Before places of nodes are given to others. Raises Restart."""
        for (parent, key), child in self._gone:
            node = self._state.nodes[child]
            if node.kind is GONE:
                continue
            if self._state.uses[child] == 0:
                raise WalkAnew  # its turn was over when it went
            if node.parent == parent and node.key == key:
                self._left[child] = parent

    def settle(self) -> None:
        """Once all is found. Raises Restart."""
        for child, parent in self._left.items():
            known = [*self._new.get(child, ()), *self._from(parent, child)]
            ways = list(dict.fromkeys(known))
            if not ways or (len(ways) != self._state.uses[child] and not self._at_gate):
                raise WalkAnew  # others that were there before lead to it
            self._lead(child, ways)
        if self._at_gate:
            return  # a boundary's paths hold
        for child, ways in self._new.items():
            node = self._state.nodes[child]
            if child not in self._left and node.kind is not PARAM_GROUP:  # these are known by their owners
                self._lead(child, [(node.parent, node.key), *ways])

    def _lead(self, child: int, ways: list[Way]) -> None:
        node = self._state.nodes[child]
        parent, key = self._best(child, ways)
        if (node.parent, node.key) == (parent, key):
            return
        if not self._at_gate and (node.edges or node.kind not in COMES_AND_GOES):
            raise WalkAnew
        self._state.nodes[child] = now = replace(node, parent=parent, key=key)
        self._state.renewed.add(child)
        if isinstance(now.content, LargeTensor):
            rename_large(self._state, now.obj, self._state.path(parent, key))

    def _best(self, child: int, ways: list[Way]) -> Way:
        lengths = [self.steps(*way) for way in ways]
        ways = [way for way, length in zip(ways, lengths) if length == min(lengths)]
        parents = {parent for parent, _ in ways}
        if len(parents) > 1 and not self._at_gate and any(self._node(parent).parent >= 0 for parent in parents):
            raise WalkAnew  # which of them comes first is not known here
        first = min(parents)  # a walk begins at the roots in their order
        keys = [key for parent, key in ways if parent == first]
        if len(keys) == 1:
            return first, keys[0]
        return next(way for way in self._from(first, child) if way[1] in keys)

    def _from(self, parent: int, child: int) -> list[Way]:
        """In the order in which a walk from scratch meets them."""
        obj = self._node(child).obj
        edges = self._node(parent).edges
        return [(parent, way) for key, value in edges for way, found in flat(key, value) if found is obj]

    def _node(self, number: int) -> StateNode:
        return self._state.nodes[number]
