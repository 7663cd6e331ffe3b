"""Tell which nodes of a state may have changed: for all of them in one look, and not object by object.

Most objects that training can reach are never written to: registries, configurations, vocabularies. A look at one of these takes
some nanoseconds. What it finds different is looked at as everything else is, so it has to be right only where it finds an object
unchanged.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import Counter
from dataclasses import dataclass
from itertools import chain
from typing import Any

from torchrelay.shim.adapters.raw_memory import object_words
from torchrelay.shim.adapters.raw_memory.list_pointers import POINTER_BYTES, pointers
from torchrelay.shim.capture.handlers import SAME
from torchrelay.shim.capture.models.modules import ModuleTrees
from torchrelay.shim.capture.state.change_detection import only_fields
from torchrelay.shim.capture.state.host_state import HostState, StateNode
from torchrelay.shim.capture.values.kinds import GONE, Kind

_BLOCK = 64
"""Lists that are compared together."""
_FEW_CHANGES = 3
"""A node that has changed more often is looked at by itself."""
_MANY = 256
"""Further nodes that are looked at by themselves before all are sorted anew."""


def _words(node: StateNode) -> list[int]:
    """Return the addresses of words that tell whether the object is unchanged; empty where it has to be looked at by itself.

    A parameter group has to be: the list of its parameters can be written to while the group stays as it is.
    """
    kind = node.kind
    obj = node.obj
    if kind is Kind.DICT:
        return [object_words.of_dict(obj)] if type(obj) is dict else []
    if kind is Kind.ATTRS:
        return object_words.of_fields(obj) if only_fields(type(obj)) else []
    if type(obj) is list:
        return [object_words.of_length(obj)] if _is_empty(node) else []
    return object_words.of_function(obj) if kind is Kind.FUNCTION else []


def _is_short_list(node: StateNode) -> bool:
    return type(node.obj) is list and type(node.content) is list


def _is_empty(node: StateNode) -> bool:
    return _is_short_list(node) and not node.content


@dataclass
class _Lists:
    """Some lists, and what they held. The nodes keep that alive, so addresses tell what it is."""

    numbers: list[int]
    objects: list[list[Any]]
    lengths: list[int]
    held: bytes

    @classmethod
    def of(cls, state: HostState, numbers: list[int]) -> _Lists:
        contents = [state.nodes[number].content for number in numbers]
        objects = [state.nodes[number].obj for number in numbers]
        return cls(numbers, objects, [*map(len, contents)], pointers([*chain.from_iterable(contents)]))

    def changed(self) -> list[int]:
        """Return the numbers of the lists that do not hold what they held."""
        lengths = [*map(len, self.objects)]
        now = pointers([*chain.from_iterable(self.objects)])
        if lengths == self.lengths and now == self.held:
            return []
        found = []
        at = 0
        at_before = 0
        for number, length, length_before in zip(self.numbers, lengths, self.lengths, strict=True):
            end = at + length * POINTER_BYTES
            end_before = at_before + length_before * POINTER_BYTES
            if now[at:end] != self.held[at_before:end_before]:
                found.append(number)
            at = end
            at_before = end_before
        return found


class Watched:
    """Watch a boundary's state, and the states that go on from it."""

    def __init__(self, trees: ModuleTrees, state: HostState) -> None:
        self.state = state
        self._rest: list[int] = []
        """Numbers of nodes that are looked at by themselves, in order."""
        self._held: dict[int, Any] = {}
        """By number, the objects that have to stay alive as long as words of the node are read."""
        addresses = []
        owners = []
        lists = []
        for number, node in enumerate(state.nodes):
            words = _words(node) if object_words.WORKS else []
            if not words and _is_short_list(node):
                lists.append(number)
                continue
            if words and SAME[node.kind](trees, node):  # nobody has written to it since it was captured
                self._held[number] = node.obj, getattr(node.obj, "__dict__", None)
                addresses += words
                owners += [number] * len(words)
            else:
                self._rest.append(number)
        self._words = object_words.Words(addresses, owners)
        self._blocks = [_Lists.of(state, lists[at : at + _BLOCK]) for at in range(0, len(lists), _BLOCK)]
        self._in_blocks = {number: place // _BLOCK for place, number in enumerate(lists)}
        """By number of a node, the place of its block."""
        self._few = len(self._rest)
        self._changes: Counter[int] = Counter()
        """How often each node has changed."""

    def look(self) -> list[int]:
        """Return the numbers of nodes that may differ from those in `state`, in order."""
        found = self._words.look()
        for block in self._blocks:
            found.update(block.changed())
        return sorted(chain(self._rest, found)) if found else self._rest[:]

    def _still_watched(self, number: int, node: StateNode) -> bool:
        """Return whether its words, as the latest look has read them, tell of the next write: it was captured after that look."""
        held, fields = self._held[number]
        if self._is_restless(number) or node.obj is not held or getattr(held, "__dict__", None) is not fields:
            return False
        return type(held) is not list or _is_empty(node)

    def _is_restless(self, number: int) -> bool:
        """Return whether the node changes so often that it is found sooner by itself."""
        return self._changes[number] > _FEW_CHANGES

    def is_worn(self) -> bool:
        """Return whether so much is new that all should be sorted anew."""
        return len(self._rest) > 2 * self._few + _MANY

    def go_on(self, state: HostState) -> None:
        """Watch `state` from now on. It went on from this one's, and all that `look` found was looked at."""
        self._words.keep()
        renewed = state.renewed
        self._changes.update(renewed)
        changed = renewed & self._held.keys()
        gone = {number for number in changed if not self._still_watched(number, state.nodes[number])}
        if gone:
            self._words.forget(gone)
            for number in gone:
                del self._held[number]
        listed = renewed & self._in_blocks.keys()
        for place in {self._in_blocks[number] for number in listed}:
            numbers = self._blocks[place].numbers
            stay = [
                n for n in numbers if n not in renewed or (not self._is_restless(n) and _is_short_list(state.nodes[n]))
            ]
            for number in set(numbers).difference(stay):
                del self._in_blocks[number]
            self._blocks[place] = _Lists.of(state, stay)
        for number in renewed - self._held.keys() - self._in_blocks.keys():
            place = bisect_left(self._rest, number)
            if state.nodes[number].kind is GONE:
                if self._rest[place : place + 1] == [number]:
                    del self._rest[place]
            elif self._rest[place : place + 1] != [number]:
                insort(self._rest, number)
        self.state = state
