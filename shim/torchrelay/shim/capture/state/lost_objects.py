"""Let go of what the variables of functions held that have returned, where nobody goes back to the boundary that remembers them.

A script may rely on the end of an object: a data set that is open cannot be opened a second time.
"""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterable
from types import FrameType

from torchrelay.shim.adapters.cpython.frames import ended_frame
from torchrelay.shim.capture.state.edges import flat, holders_of
from torchrelay.shim.capture.state.host_state import HostState, StateNode
from torchrelay.shim.capture.values.kinds import DATA, FRAME, GONE, Kind

_DEVICE = frozenset({Kind.MODULE, Kind.DDP, Kind.OPTIMIZER, Kind.OPTIMIZER_STATE, Kind.PARAM_GROUP, Kind.TENSOR})
"""Kinds that say which tensors this rank can give to another one."""


def let_go(state: HostState, running: Collection[FrameType]) -> bool:
    """Let go of frames that do not run any more and, if data was among what they alone held, of all that. Return whether it was.

    What this rank can give to another one stays. No walk goes on from `state` where objects were taken out.
    """
    frames = itertools.takewhile(lambda numbered: numbered[1].kind is FRAME, enumerate(state.nodes))
    ended = {number for number, node in frames if node.obj not in running}
    if not ended:
        return False
    lost = _held_alone(state, ended)
    has_data = any(state.nodes[number].kind in DATA for number in lost)
    for number in ended:
        _end(state, number, forgets=has_data)
    if not has_data:
        return False
    lost = {number for number in lost if not _is_of_device(state, number)}
    gone = {id(state.nodes[number].obj) for number in lost}
    for number in lost:
        node = state.nodes[number]
        del state.index[id(node.obj)]
        state.nodes[number] = StateNode(GONE, None, node.parent, node.key, None)
    state.bulk = []  # its containers have no nodes that would tell who holds them
    state.iterators = [each for each in state.iterators if id(each[1]) not in gone]
    state.drawn_from -= lost
    state.generators -= lost
    state.has_let_go = True
    return True


def _held_alone(state: HostState, numbers: Iterable[int]) -> set[int]:
    """Return the nodes to which all ways lead over these ones, without these."""
    if not state.holders:
        state.holders = holders_of(state)
    among = set(numbers)
    waiting = list(among)
    found: set[int] = set()
    while waiting:
        for key, value in state.nodes[waiting.pop()].edges:
            for _, obj in flat(key, value):
                child = state.index.get(id(obj))
                if child is not None and child not in found and among.issuperset(state.holders[child]):
                    found.add(child)
                    among.add(child)
                    waiting.append(child)
    return found


def _end(state: HostState, number: int, *, forgets: bool) -> None:
    """Put a frame that holds nothing in the place of one that has ended. `forgets`: whether to forget its variables, too."""
    node = state.nodes[number]
    frame = ended_frame()
    del state.index[id(node.obj)]
    state.index[id(frame)] = number
    content = {} if forgets else node.content
    state.nodes[number] = StateNode(FRAME, frame, node.parent, node.key, content, [] if forgets else node.edges)


def _is_of_device(state: HostState, number: int) -> bool:
    node = state.nodes[number]
    parent = state.nodes[node.parent] if node.parent >= 0 else node
    return node.kind in _DEVICE or (node.kind is Kind.LIST and parent.kind in _DEVICE)
