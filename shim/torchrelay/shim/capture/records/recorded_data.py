"""Find which data sets and loaders of this process stand for recorded ones, by where each process has what it makes itself."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from torchrelay.shim.capture.handlers.data import form_of
from torchrelay.shim.capture.handlers.handler import of_same_class
from torchrelay.shim.capture.records.children import child
from torchrelay.shim.capture.records.encode import EncodedNode
from torchrelay.shim.capture.state.data_origins import Place
from torchrelay.shim.capture.values.kinds import DATA, Kind
from torchrelay.shim.capture.values.replay_point import ABSENT


class RecordedData:
    """`known`: by the number of its origin, what stands for a recorded one already. `root`: returns a root's object, or ABSENT.

    `mark`: that of the loop around; by now other data can be in the places of what was seen before its head. No argument is kept: a
    circle would keep iterators alive that the script has dropped.
    """

    def __init__(
        self, nodes: Sequence[EncodedNode], root: Callable[[Kind, Any], Any], known: Mapping[int, Any], mark: int
    ) -> None:
        self._found: dict[int, Any] = {}
        self._node_of: dict[int, int] = {}
        for number, node in enumerate(nodes):
            if node.kind not in DATA:
                continue
            form = form_of(node)
            there = known.get(form.number, ABSENT)
            if not of_same_class(node, there):
                there = ABSENT
            if there is ABSENT and not form.is_made and form.seen_at > mark:
                there = _at(form.place, root)
            if there is not ABSENT and of_same_class(node, there) and id(there) not in self._node_of:
                self._found[number] = there
                self._node_of[id(there)] = number

    def of(self, number: int) -> Any:
        """Return what stands for a node, or ABSENT where its place tells nothing."""
        return self._found.get(number, ABSENT)

    def numbers(self) -> Iterable[int]:
        """Return the nodes that something stands for."""
        return self._found

    def is_anothers(self, number: int, there: Any) -> bool:
        """Return whether an object stands for another node than this one."""
        return self._node_of.get(id(there), number) != number


def _at(place: Place, root: Callable[[Kind, Any], Any]) -> Any:
    """Return what stands at a place, or ABSENT."""
    if not place:
        return ABSENT
    (kind, key), *steps = place
    there = root(Kind(kind), key)
    for parent, step in steps:
        if there is ABSENT:
            break
        there = child(Kind(parent), there, step)
    return there
