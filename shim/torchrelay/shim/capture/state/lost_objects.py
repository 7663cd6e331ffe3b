"""Let go of objects that the script has let go of, where nobody goes back to the boundary that remembers them.

A script may rely on the end of an object: a data set that is open cannot be opened a second time.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from torchrelay.shim.adapters.cpython.frames import ended_frame
from torchrelay.shim.capture.state.edges import flat, holders_of
from torchrelay.shim.capture.state.host_state import HostState, StateNode
from torchrelay.shim.capture.values.kinds import DATA, FRAME, GONE, PLAIN, Kind

_DEVICE = frozenset({Kind.MODULE, Kind.DDP, Kind.OPTIMIZER, Kind.OPTIMIZER_STATE, Kind.PARAM_GROUP, Kind.TENSOR})
"""Kinds that say which tensors this rank can give to another one."""


def let_go(state: HostState, now: HostState) -> bool:
    """Let go of frames that `now` does not have any more, and where it lacks data, of all that it lacks. Return whether it does.

    What this rank can give to another one stays. No walk goes on from `state` afterwards where objects were taken out.
    """
    lost = {number for number, node in enumerate(state.nodes) if node.kind is not GONE and id(node.obj) not in now.index}
    for number in lost:
        if state.nodes[number].kind is FRAME:
            _end_frame(state, number)
    if not any(state.nodes[number].kind in DATA for number in lost):
        return False
    holders = state.holders or holders_of(state)
    lost = {number for number in lost if not _is_of_device(state, number)}
    objects = {id(state.nodes[number].obj) for number in lost}
    for number in {holder for each in lost for holder in holders[each] if holder >= 0} - lost:
        node = state.nodes[number]
        edges = [(key, value) for key, value in node.edges if objects.isdisjoint(id(obj) for _, obj in flat(key, value))]
        content = node.content if len(edges) == len(node.edges) else _without(node.content, {id(v) for _, v in edges})
        state.nodes[number] = StateNode(node.kind, node.obj, node.parent, node.key, content, edges)
    for number in lost:
        node = state.nodes[number]
        del state.index[id(node.obj)]
        state.nodes[number] = StateNode(GONE, None, node.parent, node.key, None)
    bulk = {id(obj) for obj, _, _ in now.bulk}
    iterators = {id(iterator) for _, iterator in now.iterators}
    state.bulk = [each for each in state.bulk if id(each[0]) in bulk]
    state.iterators = [each for each in state.iterators if id(each[1]) in iterators]
    state.drawn_from -= lost
    state.generators -= lost
    state.has_let_go = True
    return True


def _end_frame(state: HostState, number: int) -> None:
    node = state.nodes[number]
    ended = ended_frame()
    del state.index[id(node.obj)]
    state.index[id(ended)] = number
    state.nodes[number] = StateNode(FRAME, ended, node.parent, node.key, node.content, node.edges)


def _is_of_device(state: HostState, number: int) -> bool:
    node = state.nodes[number]
    parent = state.nodes[node.parent] if node.parent >= 0 else node
    return node.kind in _DEVICE or (node.kind is Kind.LIST and parent.kind in _DEVICE)


def _without(content: Any, still_there: Collection[int]) -> Any:
    """Return what is left of the content of a node. `still_there`: ids of the objects that hang below it."""
    if isinstance(content, Mapping):
        return {k: v for k, v in content.items() if type(v) in PLAIN or id(v) in still_there}
    return None
