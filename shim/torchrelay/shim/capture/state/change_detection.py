"""Find how a list, a dict or an object of an earlier walk is now, in one go."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torchrelay.shim.capture.state.edges import Edges
from torchrelay.shim.capture.state.host_state import StateNode
from torchrelay.shim.capture.values.kinds import ATTRS, PARAM_GROUP, PLAIN
from torchrelay.shim.capture.values.long_list import LONG


class WalkAnew(Exception):
    """Raised where the earlier walk is no basis. It is always answered with a walk from scratch."""


def changed(node: StateNode) -> StateNode | None:
    """Return a list, a dict or an object as it is now, in one go, since some change in each step; None where it takes a visit."""
    obj = node.obj
    kind = node.kind
    cls = type(node.obj)
    content: Any
    edges: Edges
    if cls is list:
        if len(obj) >= LONG:
            return None
        content = obj[:]
        edges = [(place, value) for place, value in enumerate(content) if type(value) not in PLAIN]
    elif cls is dict:
        if len(obj) > LONG or {*map(type, obj)} - _STRINGS:
            return None
        content = obj.copy()
        edges = [(name, value) for name, value in content.items() if type(value) not in PLAIN]
        if kind is PARAM_GROUP:
            edges = [edge for edge in edges if edge[0] != "params"]
            return StateNode(kind, obj, node.parent, node.key, content, edges, [*content["params"]])
    elif kind is ATTRS and only_fields(cls) and "<locals>" not in cls.__qualname__:
        content = obj.__dict__.copy()
        edges = [(name, value) for name, value in content.items() if type(value) not in PLAIN]
        return StateNode(kind, obj, node.parent, node.key, content, edges, cls)
    else:
        return None
    return StateNode(kind, obj, node.parent, node.key, content, edges)


_STRINGS = frozenset({str})
_without_slots: dict[type, bool] = {}


def only_fields(cls: type) -> bool:
    """Return whether the attributes of instances are all in their `__dict__`, and the class lets that be read."""
    known = _without_slots.get(cls)
    if known is None:
        slots = {name for c in cls.__mro__ for name in _slots(c)} - {"__dict__", "__weakref__"}
        asked: object = cls.__getattribute__  # numpy's `npz.f` looks each name up in a file
        is_readable = asked is object.__getattribute__
        known = _without_slots[cls] = cls.__dictoffset__ != 0 and not slots and is_readable
    return known


def _slots(cls: type) -> Sequence[str]:
    slots = vars(cls).get("__slots__", ())
    return (slots,) if isinstance(slots, str) else tuple(slots)
