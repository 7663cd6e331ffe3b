"""Edges between nodes of a host state, and what an object means for them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from operator import is_
from typing import Any

from torchrelay.shim.capture.state.host_state import HostState, Inside
from torchrelay.shim.capture.values import callables
from torchrelay.shim.capture.values.kinds import PLAIN, Kind, kind_of

Edges = list[tuple[Any, Any]]
"""By key, the objects that an object leads to."""
MAY_BE_LOOKED_THROUGH = frozenset({Kind.TUPLE, Kind.THROUGH, Kind.FUNCTION, Kind.NDARRAY})
NOTHING = object()


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
        if gone.get(key, NOTHING) is value:
            del gone[key]
        else:
            new.append((key, value))
    return list(gone.items()), new


def flat(key: Any, value: Any) -> Iterator[tuple[Any, Any]]:
    """What a value means for the walk: tuples, bound methods and their like are looked through, and arrays at the
    one whose memory they share."""
    cls = type(value)
    if cls in PLAIN:
        return
    if kind_of(cls) in MAY_BE_LOOKED_THROUGH and callables.is_looked_through(value):
        for place, element in callables.parts(value):
            yield from flat(Inside(key, place), element)
    else:
        yield key, value


def not_plain(content: Mapping[Any, Any]) -> Edges:
    return [(key, value) for key, value in content.items() if type(value) not in PLAIN]


def count_uses(state: HostState) -> list[int]:
    uses = [int(node.parent < 0) for node in state.nodes]
    for node in state.nodes:
        for key, value in node.edges:
            for _, obj in flat(key, value):
                child = state.index.get(id(obj))
                if child is not None:
                    uses[child] += 1
    return uses
