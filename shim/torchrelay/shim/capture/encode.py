"""Host state as plain data: for the journal, and back into the objects of another process.

A value is written as itself if it is plain, as (REF, node) if the walk has a node for it, as (TUPLE, class, items) or as
(OPAQUE, name of its type). Plain values are never tuples, so the tags cannot be mistaken.
"""

from __future__ import annotations

import functools
import pickle
from dataclasses import dataclass
from typing import Any

from torchrelay.shim.capture import modules
from torchrelay.shim.capture.kinds import PLAIN, Kind, kind_of
from torchrelay.shim.capture.walk import HostState, Node

REF, TUPLE, OPAQUE = 0, 1, 2


@dataclass(frozen=True)
class EncodedNode:
    kind: Kind
    cls: type | None
    """Where an object of this type has to be made; None if its class cannot be found by name."""
    parent: int
    key: Any
    content: Any

    def __reduce__(self) -> Any:
        return EncodedNode, (int(self.kind), self.cls, self.parent, self.key, self.content)

    def __post_init__(self) -> None:
        object.__setattr__(self, "kind", Kind(self.kind))


@functools.lru_cache(maxsize=4096)
def importable(cls: type) -> bool:
    """Whether pickle finds the class by name in another process."""
    try:
        return pickle.loads(pickle.dumps(cls)) is cls
    except (pickle.PickleError, AttributeError, ImportError, TypeError):
        return False


class _Encoder:
    def __init__(self, state: HostState, trees: modules.ModuleTrees) -> None:
        self.state = state
        self.trees = trees

    def value(self, value: Any) -> Any:
        cls = type(value)
        if cls in PLAIN:
            return value
        number = self.state.index.get(id(value))
        if number is not None:
            return (REF, number)
        kind = kind_of(cls)
        if kind is Kind.PLAIN and importable(cls):
            return value
        if kind is Kind.TUPLE and importable(cls):
            return (TUPLE, cls, [self.value(v) for v in value])
        return (OPAQUE, cls.__qualname__)

    def mapping(self, content: dict[Any, Any]) -> dict[Any, Any]:
        value = self.value
        return {k: v if type(v) in PLAIN else value(v) for k, v in content.items() if type(k) in PLAIN or _by_value(k)}

    def items(self, content: list[Any]) -> list[Any]:
        value = self.value
        return [v if type(v) in PLAIN else value(v) for v in content]

    def node(self, node: Node) -> EncodedNode:
        kind, content = node.kind, node.content
        if kind in (Kind.FRAME, Kind.GLOBALS):
            encoded = {k: v for k, v in self.mapping(content).items() if not (type(v) is tuple and v[0] == OPAQUE)}
        elif isinstance(content, dict) and kind is not Kind.NUMPY_RANDOM:
            encoded = self.mapping(content)
        elif kind in (Kind.LIST, Kind.DEQUE):
            encoded = self.items(content)
        elif kind is Kind.SET:
            encoded = {v for v in content if type(v) in PLAIN or _by_value(v)}
        elif kind is Kind.MODULE:
            changing = self.trees.tree(node.obj).changing
            buffers = {k: v for k, v in content.buffers.items() if k in changing}
            encoded = (content.flags, content.slots, self.items(content.values), buffers)
        else:
            encoded = content
        cls = type(node.obj)
        return EncodedNode(kind, cls if importable(cls) else None, node.parent, node.key, encoded)


def _by_value(key: Any) -> bool:
    kind = kind_of(type(key))
    return kind is Kind.PLAIN or (kind is Kind.TUPLE and all(type(k) in PLAIN for k in key))


def encode(state: HostState, trees: modules.ModuleTrees) -> list[EncodedNode]:
    encoder = _Encoder(state, trees)
    return [encoder.node(node) for node in state.nodes]
