"""Handle edges between nodes of a host state, and tell what an object means for them."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from itertools import islice
from operator import gt, is_
from typing import Any

from torchrelay.shim.capture.state.host_state import HostState, Inside
from torchrelay.shim.capture.values import callables
from torchrelay.shim.capture.values.kinds import PLAIN, Kind, kind_of

Edges = list[tuple[Any, Any]]
"""Keys, each with the object that it leads to."""
MAY_BE_LOOKED_THROUGH = frozenset({Kind.TUPLE, Kind.THROUGH, Kind.FUNCTION, Kind.NDARRAY, Kind.PLAIN})
NOTHING = object()


def same_items(now: Any, then: Any) -> bool:
    """Return whether two sequences hold the same objects."""
    return len(now) == len(then) and all(map(is_, now, then))


def same_mapping(now: Mapping[Any, Any], then: Mapping[Any, Any]) -> bool:
    return len(now) == len(then) and all(map(is_, now.values(), then.values())) and all(map(is_, now, then))


def edge_changes(then: Edges, now: Edges) -> tuple[Edges, Edges]:
    """Return the edges that are no more, and those that are new. A key stands for one edge."""
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


def are_turned(then: Edges, now: Edges) -> bool:
    """Return whether edges that are in both come in another order: a dict's item that was taken out and put in again."""
    if len(then) < 2 or then is now:
        return False
    places = {key: place for place, (key, _) in enumerate(then)}
    both = [place for key, _ in now if (place := places.get(key)) is not None]
    return any(map(gt, both, islice(both, 1, None)))


def flat(key: Any, value: Any) -> Iterator[tuple[Any, Any]]:
    """Yield what a value means for the walk. Tuples, bound methods and their like are looked through.

    An array that looks into another one's memory is looked through, too, at that one.
    """
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


def holders_of(state: HostState) -> list[tuple[int, ...]]:
    """Return for each node the nodes that lead to it, one for each edge; -1 for a root."""
    found: list[list[int]] = [[-1] if node.parent < 0 else [] for node in state.nodes]
    for number, node in enumerate(state.nodes):
        for key, value in node.edges:
            for _, obj in flat(key, value):
                child = state.index.get(id(obj))
                if child is not None:
                    found[child].append(number)
    return [*map(tuple, found)]


def reached_from(state: HostState, numbers: Iterable[int], stops: Collection[Kind], most: int) -> set[int] | None:
    """Return these nodes and all that they lead to, but for nodes of the kinds `stops`; None where that is more than `most`."""
    found: set[int] = set()
    waiting = [*numbers]
    while waiting:
        number = waiting.pop()
        if number in found:
            continue
        found.add(number)
        if len(found) > most:
            return None
        for key, value in state.nodes[number].edges:
            for _, obj in flat(key, value):
                child = state.index.get(id(obj))
                if child is not None and child not in found and state.nodes[child].kind not in stops:
                    waiting.append(child)
    return found
