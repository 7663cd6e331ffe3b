"""Note what drawing a batch changes in objects that go back to their boundary with the rank.

A draw that is answered from the record runs no code, so it has to leave these objects as the draw itself did. They are the random
generators, wherever they are, and what hangs below a data loader: samplers and the data set's own attributes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from typing import Any

from torchrelay.shim.capture.iteration import shared_memory
from torchrelay.shim.capture.models.aliases import is_by_value
from torchrelay.shim.capture.records import undo
from torchrelay.shim.capture.state.edges import flat
from torchrelay.shim.capture.state.host_state import HostState, StateNode
from torchrelay.shim.capture.state.parts import attributes, dataset_parts, loader_own, numpy_random_state
from torchrelay.shim.capture.values import callables, read_files, small
from torchrelay.shim.capture.values.kinds import Kind, kind_of
from torchrelay.shim.capture.values.set_content import SetContent

_TAKE: dict[Kind, Callable[[Any], Any]] = {
    Kind.ATTRS: attributes,
    Kind.DATASET: lambda obj: dataset_parts(obj)[0],
    Kind.LOADER: loader_own,
    Kind.LIST: list,
    Kind.DICT: dict,
    Kind.DEQUE: list,
    Kind.SET: SetContent,
    Kind.BYTEARRAY: bytes,
    Kind.TENSOR: small.take,
    Kind.NDARRAY: lambda obj: obj.copy("K"),
    Kind.OBJECT_ARRAY: lambda obj: obj.reshape(-1).tolist(),
    Kind.FUNCTION: callables.variables,
    Kind.CLASS: callables.class_state,
    Kind.TORCH_GENERATOR: lambda obj: small.take(obj.get_state()),
    Kind.PYTHON_RANDOM: lambda obj: obj.getstate(),
    Kind.NUMPY_RANDOM: numpy_random_state,
    Kind.FILE: read_files.place_of,
    Kind.SHARED_VALUE: shared_memory.state_of,
}
_ONLY_THROUGH = (Kind.REPLAY_POINT, Kind.CYCLE, Kind.GENERATOR)
"""Kinds without content of their own here; what is below them may have some."""


def left_behind(state: HostState, loaders: Iterable[Any]) -> Callable[[], None]:
    """Return a function that puts what drawing from these loaders may have changed to what it is now."""
    return as_they_are(nodes_below(state, loaders))


def nodes_below(state: HostState, loaders: Iterable[Any]) -> list[StateNode]:
    """Return the nodes of all that drawing from these loaders may change, the generators included."""
    reached = nodes_reached(state, [state.index[id(loader)] for loader in loaders if id(loader) in state.index])
    numbers = dict.fromkeys((*state.generators, *(state.index[id(node.obj)] for node in reached)))
    return [node for node in (state.nodes[n] for n in numbers) if is_put_back(node)]


def nodes_reached(state: HostState, numbers: Iterable[int]) -> list[StateNode]:
    """Return these nodes and all that they lead to, but for nodes without content here, such as a model that a sampler knows."""
    queue = [*numbers]
    found = []
    seen = set(queue)
    for number in queue:
        node = state.nodes[number]
        if node.kind not in _TAKE and node.kind not in _ONLY_THROUGH:
            continue
        found.append(node)
        new = [n for n in _children(state, node) if n not in seen]
        seen.update(new)
        queue += new
    return found


def _children(state: HostState, node: StateNode) -> Iterator[int]:
    for key, value in node.edges:
        for obj in (value,) if id(value) in state.index else (below for _, below in flat(key, value)):
            if (number := state.index.get(id(obj))) is not None:
                yield number


def content_of(kind: Kind, obj: Any) -> Any:
    return _TAKE[kind](obj)


def state_of(generator: Any) -> Any:
    return _TAKE[kind_of(type(generator))](generator)


def generator_states(state: HostState) -> dict[int, Any]:
    """Return the states of the random generators, by id."""
    nodes = (state.nodes[number] for number in state.generators)
    return {id(node.obj): _TAKE[node.kind](node.obj) for node in nodes}


def as_they_are(nodes: Iterable[StateNode]) -> Callable[[], None]:
    """Return a function that puts the objects of these nodes to what they are now."""
    now = [replace(node, content=_TAKE[node.kind](node.obj)) for node in nodes]

    def again() -> None:
        for node in now:
            undo.undo_node(node)

    return again


def as_walked(now: HostState, boundary: HostState) -> Callable[[], None]:
    """Return a function that puts what was there at the boundary to what it is in `now`, where that is something else."""
    numbers = sorted(now.renewed) if now.takes_over else range(len(now.nodes))
    nodes = (now.nodes[number] for number in numbers)
    changed = [n for n in nodes if (n.kind in _TAKE or n.kind is Kind.GLOBALS) and id(n.obj) in boundary.index]

    def again() -> None:
        for node in changed:
            undo.undo_node(node)

    return again


def is_put_back(node: StateNode) -> bool:
    """Return whether the node's content can be taken here, and put back as it is."""
    if node.kind is Kind.TENSOR:
        return isinstance(node.content, small.TensorValue)
    if node.kind is Kind.NDARRAY:
        return is_by_value(node.content)
    return node.kind in _TAKE
