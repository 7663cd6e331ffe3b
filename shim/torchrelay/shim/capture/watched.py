"""Which nodes of a state may be others than they were: told for all of them in one look, and not object by object.

Most objects that training can reach are never written to: registries, configurations, vocabularies. A look at one of these takes
some nanoseconds. What it finds different is looked at as everything else is, so it has to be right only where it finds it the same.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from dataclasses import dataclass
from itertools import chain
from typing import Any

from torchrelay.shim.adapters import object_words
from torchrelay.shim.adapters.list_pointers import pointers
from torchrelay.shim.capture.handlers import SAME
from torchrelay.shim.capture.host_state import HostState, Node
from torchrelay.shim.capture.kinds import GONE, Kind
from torchrelay.shim.capture.modules import ModuleTrees
from torchrelay.shim.capture.seen_again import only_fields

_BLOCK = 64
"""Lists that are compared together."""
_MANY = 256
"""Further nodes that are looked at by themselves before all are sorted anew."""


def _words(node: Node) -> list[int]:
    """Addresses of what tells that it is as it was; empty for what has to be looked at by itself."""
    kind, obj = node.kind, node.obj
    if kind is Kind.DICT or kind is Kind.PARAM_GROUP:
        return [object_words.of_dict(obj)] if type(obj) is dict else []
    if type(obj) is list:
        return object_words.of_list(obj) if type(node.content) is list else []
    if kind is Kind.ATTRS:
        return object_words.of_fields(obj) if only_fields(type(obj)) else []
    return object_words.of_function(obj) if kind is Kind.FUNCTION else []


@dataclass
class _Lists:
    """Some lists, and what they held: the nodes keep that alive, so addresses tell what it is."""

    numbers: list[int]
    objects: list[list[Any]]
    lengths: list[int]
    held: bytes

    @classmethod
    def of(cls, state: HostState, numbers: list[int]) -> _Lists:
        contents = [state.nodes[number].content for number in numbers]
        objects = [state.nodes[number].obj for number in numbers]
        return cls(numbers, objects, [*map(len, contents)], pointers([*chain.from_iterable(contents)]))

    def are_same(self) -> bool:
        lengths_are = object_words.WORKS or [*map(len, self.objects)] == self.lengths  # else their words tell
        return lengths_are and pointers([*chain.from_iterable(self.objects)]) == self.held


class Watched:
    """Of a boundary's state, and of those that go on from it."""

    def __init__(self, trees: ModuleTrees, state: HostState) -> None:
        self.state = state
        self._rest: list[int] = []
        """Numbers of nodes that are looked at by themselves, in order."""
        self._held: dict[int, Any] = {}
        """By number, what has to stay alive as long as words of it are read, beside its object."""
        addresses, owners, lists = [], [], []
        for number, node in enumerate(state.nodes):
            is_list = type(node.obj) is list and type(node.content) is list
            if is_list and (node.content or not object_words.WORKS):
                lists.append(number)
            words = _words(node) if object_words.WORKS else []
            if is_list and not words:
                continue
            if words and SAME[node.kind](trees, node):  # nobody has written to it since it was captured
                self._held[number] = node.obj, getattr(node.obj, "__dict__", None)
                addresses += words
                owners += [number] * len(words)
            else:
                self._rest.append(number)
        self._words = object_words.Words(addresses, owners)
        self._blocks = [_Lists.of(state, lists[at : at + _BLOCK]) for at in range(0, len(lists), _BLOCK)]
        self._in_blocks = set(lists)
        self._few = len(self._rest)

    def look(self) -> list[int]:
        """Numbers of nodes that may be others than in `state`, in order."""
        found = self._words.look()
        moved = found & self._in_blocks  # what stands behind these in their blocks may be another list's
        for block in self._blocks:
            if (moved and not moved.isdisjoint(block.numbers)) or not block.are_same():
                found.update(block.numbers)
        return sorted(chain(self._rest, found)) if found else self._rest[:]

    def is_worn(self) -> bool:
        """Whether so much is new that all should be sorted anew."""
        return len(self._rest) > 2 * self._few + _MANY

    def go_on(self, state: HostState) -> None:
        """`state` went on from this one's, with what `look` found looked at."""
        self._words.keep()
        renewed = state.renewed
        changed = renewed & self._held.keys()
        if changed:
            self._words.forget(changed)
            for number in changed:
                del self._held[number]
        if renewed & self._in_blocks:
            self._in_blocks -= renewed
            for place, block in enumerate(self._blocks):
                if not renewed.isdisjoint(block.numbers):
                    self._blocks[place] = _Lists.of(state, [n for n in block.numbers if n not in renewed])
        for number in renewed:
            place = bisect_left(self._rest, number)
            if state.nodes[number].kind is GONE:
                if self._rest[place : place + 1] == [number]:
                    del self._rest[place]
            elif self._rest[place : place + 1] != [number]:
                insort(self._rest, number)
        self.state = state
