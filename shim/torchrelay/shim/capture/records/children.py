"""Find what stands at a key of a recorded node's object, in this process."""

from __future__ import annotations

from types import MappingProxyType
from typing import Any

from torchrelay.shim.adapters.cpython.csv_readers import lines_of
from torchrelay.shim.capture.handlers import HANDLERS
from torchrelay.shim.capture.state.host_state import Deep, Fields, Inside, Nth
from torchrelay.shim.capture.state.random_below import follow
from torchrelay.shim.capture.values import callables
from torchrelay.shim.capture.values.base_types import dict_items, fields, tuple_items
from torchrelay.shim.capture.values.callables import LINES, ElementOf
from torchrelay.shim.capture.values.kinds import Kind
from torchrelay.shim.capture.values.replay_point import ABSENT


def child(kind: Kind, parent: Any, key: Any) -> Any:
    """Return what stands now at `key` of a node's object, or ABSENT."""
    if type(key) is Fields:
        own = fields(parent)
        return ABSENT if own is None else own
    if type(key) is Deep:
        try:
            return follow(parent, key)
        except (LookupError, AttributeError, TypeError):
            return ABSENT
    if type(key) is Inside:
        return _inside(child(kind, parent, key.key), key.place)
    if type(key) is ElementOf:
        return _element(parent, key)
    if type(key) is Nth:
        if not issubclass(type(parent), dict):
            return HANDLERS[kind].child(parent, key)
        values = [*dict_items(parent).values()]
        return values[key.place] if key.place < len(values) else ABSENT
    return HANDLERS[kind].child(parent, key)


def _element(holder: Any, key: ElementOf) -> Any:
    found = callables.of_class(holder, key.cls)
    return found[key.number] if key.number < len(found) else ABSENT


def _inside(outer: Any, place: int | str | ElementOf) -> Any:
    """Return what stands in a tuple, or in what is looked through like one.

    Hooks are in a dict whose numbers mean nothing elsewhere.
    """
    if isinstance(place, ElementOf):
        return _element(outer, place)
    if isinstance(place, str):
        if place == LINES:
            return lines_of(outer) or ABSENT
        if place == callables.BEHIND:
            found = callables.behind(outer) if isinstance(outer, MappingProxyType) else None
            return ABSENT if found is None else found
        return ABSENT if outer is ABSENT else getattr(outer, place, ABSENT)
    if isinstance(outer, dict):
        outer = tuple(outer.values())
    items = tuple_items(outer) if isinstance(outer, tuple) else ()
    return items[place] if place < len(items) else ABSENT
