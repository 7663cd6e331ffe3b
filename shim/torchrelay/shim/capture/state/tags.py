"""Name the forms in which values that are not plain are written: the first element of a tuple. See `encode`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

(
    REF,
    TUPLE,
    OPAQUE,
    WEAK,
    NAMED,
    METHOD,
    PARTIAL,
    PART,
    SAVE,
    BOUND,
    FREE,
    VALUE,
    OWN,
    WINDOW,
    GROUPED,
    FILE,
    ADDRESS,
    HOOK,
) = range(18)


def is_left(value: Any, node_is_left: Callable[[int], bool]) -> bool:
    """Return whether all of it, or a part of it, is not carried: another process keeps its own object in that place."""
    if type(value) is not tuple:
        return False
    tag = value[0]
    if tag == OPAQUE:
        return True
    if tag in (REF, PART, BOUND, WINDOW, GROUPED, HOOK):
        return node_is_left(value[1])
    if tag == TUPLE:
        return any(is_left(item, node_is_left) for item in value[2])
    if tag in (METHOD, WEAK, ADDRESS):
        return is_left(value[1], node_is_left)
    if tag == PARTIAL:
        return any(is_left(part, node_is_left) for part in (value[1], *value[2], *value[3].values()))
    return False
