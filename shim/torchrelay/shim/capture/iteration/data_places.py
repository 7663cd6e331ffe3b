"""Settle where data sets and loaders are at a loop's first head: there a new process has what it makes itself."""

from __future__ import annotations

from typing import Any

from torchrelay.shim.capture.iteration.data_changes import ways_to_data_sets
from torchrelay.shim.capture.state.data_origins import DataOrigins, Place
from torchrelay.shim.capture.state.host_state import HostState
from torchrelay.shim.capture.values.kinds import DATA, Kind

_STEPS = (str, int)


def settle(state: HostState, origins: DataOrigins, mark: int, *, is_known: bool) -> None:
    """Settle the places of what was first seen behind `mark`, that of the loop around; of data sets within data sets, too.

    `is_known`: nothing but what `state` shows was there at the heads of the loops around.
    """
    if origins.mark <= mark:
        return
    places: dict[int, Place] = {}
    of_parts: dict[int, Place] = {}
    for number, node in enumerate(state.nodes) if is_known else ():
        if node.kind in DATA:
            places[id(node.obj)] = place = place_of(state, number)
            if node.kind is Kind.DATASET:
                of_parts.update(places_of_parts(node.obj, place))
    for obj in origins.settle({**of_parts, **places}, mark):
        found = state.index.get(id(obj))
        if found is not None:
            state.renewed.add(found)


def places_of_parts(dataset: Any, place: Place) -> dict[int, Place]:
    """Return the places of the data sets within another one, by id. `place`: that of the data set."""
    return {
        id(part): (*place, (int(Kind.DATASET), way))
        for way, part in ways_to_data_sets(dataset).items()
        if all(type(step) in _STEPS for step in way.steps)
    }


def place_of(state: HostState, number: int) -> Place:
    """Return the way that the walk has come to a node."""
    steps = []
    node = state.nodes[number]
    while node.parent >= 0:
        parent = state.nodes[node.parent]
        steps.append((int(parent.kind), node.key))
        node = parent
    return (int(node.kind), node.key), *reversed(steps)
