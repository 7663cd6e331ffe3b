"""Which recorded objects hold another one, and where: the way that leads to it first may not be there in a new process."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from torchrelay.shim.capture.records.encode import EncodedNode
from torchrelay.shim.capture.state.keys import by_place
from torchrelay.shim.capture.state.tags import PART, REF
from torchrelay.shim.capture.values.kinds import DATA, Kind

VARIABLES = (Kind.FRAME, Kind.GLOBALS)
"""Kinds whose parts mean one thing and then another, and may not be bound yet."""
Place = tuple[int, Any]
"""A node, and a key of its object."""


class Holders:
    """What holds data and what each process makes by itself, and modules below trees; variables last."""

    def __init__(self, nodes: Sequence[EncodedNode]) -> None:
        self._nodes = nodes
        wanted = {number for number, node in enumerate(nodes) if is_of_set_up(node) or node.kind in DATA}
        self._of: dict[int, list[Place]] = {}
        self._of_parts: dict[tuple[int, str], list[Place]] = {}
        for holder, key, value in sorted(self._held(), key=lambda held: self._is_variable(held[0])):
            if value[0] == REF and value[1] in wanted:
                self._of.setdefault(value[1], []).append((holder, key))
            elif value[0] == PART:
                self._of_parts.setdefault(value[1:], []).append((holder, key))

    def of(self, number: int, *, by_variables: bool) -> list[Place]:
        """Return the holders of a node; without `by_variables` only those that are no variables."""
        found = self._of.get(number, [])
        return found if by_variables else [place for place in found if not self._is_variable(place[0])]

    def of_part(self, number: int, path: str) -> list[Place]:
        """Return the holders of the module at `path` in a node's tree."""
        return self._of_parts.get((number, path), [])

    def _is_variable(self, holder: int) -> bool:
        return self._nodes[holder].kind in VARIABLES

    def _held(self) -> Iterator[tuple[int, Any, tuple[Any, ...]]]:
        """Yield what is no plain value: the node that holds it, where, and its written form."""
        for holder, node in enumerate(self._nodes):
            content = enumerate(node.content) if type(node.content) is list else ()
            for key, value in by_place(node.content).items() if type(node.content) is dict else content:
                if type(value) is tuple:
                    yield holder, key, value


def is_of_set_up(node: EncodedNode) -> bool:
    """Return whether each process has made such an object before it comes to the loop. To make a second one is the last resort."""
    return node.kind in (Kind.DDP, Kind.OPTIMIZER) or (node.kind is Kind.MODULE and node.content[4] is None)
