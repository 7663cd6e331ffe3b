"""Find random generators inside of what is otherwise taken for data: a data set's transforms, an object that collates.

The rest of it is not looked at: it may be large, and is not expected to change.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from typing import Any

from torchrelay.shim.capture.state.host_state import Deep
from torchrelay.shim.capture.values.base_types import deque_items, dict_items, list_items, tuple_items
from torchrelay.shim.capture.values.kinds import PLAIN, Kind, kind_of

GENERATORS = frozenset({Kind.TORCH_GENERATOR, Kind.PYTHON_RANDOM, Kind.NUMPY_RANDOM, Kind.SHARED_VALUE})
"""Kinds of generators. Counters in shared memory decide what is drawn as generators do."""
MOST_OBJECTS = 500
"""More objects than this are data indeed."""
MOST_ITEMS = 64
"""A container with more items holds samples."""
_WITH_ATTRIBUTES = (Kind.ATTRS, Kind.DATASET, Kind.MODULE)
_SEQUENCES = (Kind.LIST, Kind.TUPLE, Kind.DEQUE)
_ITEMS: dict[Kind, Callable[[Any], Any]] = {
    Kind.LIST: list_items,
    Kind.TUPLE: tuple_items,
    Kind.DEQUE: deque_items,
    Kind.DICT: dict_items,
}


def random_below(root: Any, *first: str) -> dict[Deep, Any]:
    """Return the generators by the way that leads from `root` to each, the nearest first.

    `first`: how the root's own way begins.
    """
    found: dict[Deep, Any] = {}
    seen = {id(root)}
    queue = deque([(first, root)])
    while queue and len(seen) < MOST_OBJECTS:
        way, obj = queue.popleft()
        for step, value in _parts(obj):
            kind = Kind.PLAIN if type(value) in PLAIN else kind_of(type(value))
            if kind is Kind.PLAIN or id(value) in seen:
                continue
            seen.add(id(value))
            if kind in GENERATORS:
                found[Deep((*way, step))] = value
            elif kind in _WITH_ATTRIBUTES or kind in _SEQUENCES or kind is Kind.DICT:
                queue.append(((*way, step), value))
    return found


def _parts(obj: Any) -> Iterator[tuple[Any, Any]]:
    kind = kind_of(type(obj))
    if kind in _WITH_ATTRIBUTES:
        yield from [*getattr(obj, "__dict__", {}).items()]
        return
    items: Any = _ITEMS[kind](obj) if kind in _ITEMS else ()
    if len(items) <= MOST_ITEMS:
        yield from [*items.items()] if kind is Kind.DICT else enumerate(items)


def follow(root: Any, way: Deep) -> Any:
    """Return what stands there. Raises LookupError, AttributeError or TypeError where nothing does."""
    for step in way.steps:
        has_attributes = kind_of(type(root)) in (*_WITH_ATTRIBUTES, Kind.LOADER)
        root = getattr(root, step) if has_attributes else root[step]
    return root
