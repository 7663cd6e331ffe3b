"""Where an `itertools.cycle` over a data loader stands, and how another one is led there.

In its first pass it draws from the loader and keeps what it gets; later it yields that again. Leans on what the garbage collector
says of it (its iterator, as long as there is one, and the list of what it keeps) and on its place in that list, which lies
behind both in `cycleobject`. Seen on CPython 3.10 to 3.13; tried on a sample when this module is imported, and None where
that disagrees: such a cycle is named in the protection report.
"""

from __future__ import annotations

import ctypes
import gc
import itertools
from typing import Any, NamedTuple

from torchrelay.protocol.errors import StateMismatchError

_INDEX_AT = object.__basicsize__ + 2 * ctypes.sizeof(ctypes.c_void_p)


class CyclePlace(NamedTuple):
    """`kept`: how many items it has kept; `over`: whether the first pass is; `following`: which one comes next in later passes."""

    kept: int
    over: bool
    following: int


def _read(cycle: Any) -> tuple[CyclePlace, Any] | None:
    found = [obj for obj in gc.get_referents(cycle) if not isinstance(obj, type)]  # its own, from 3.12 on
    iterator = found[0] if len(found) == 2 else None
    kept = found[-1] if found else None
    if type(kept) is not list or (iterator is None and len(found) != 1):
        return None
    index = ctypes.c_ssize_t.from_address(id(cycle) + _INDEX_AT).value if iterator is None else 0
    return CyclePlace(len(kept), iterator is None, index), iterator


def _works() -> bool:
    if itertools.cycle.__basicsize__ < _INDEX_AT + ctypes.sizeof(ctypes.c_ssize_t):
        return False
    sample = itertools.cycle(iter((object(), object(), object())))
    expected: list[CyclePlace] = []
    seen: list[CyclePlace | None] = []
    for place in (*(CyclePlace(n, False, 0) for n in range(4)), *(CyclePlace(3, True, n) for n in (1, 2, 0, 1))):
        found = _read(sample)
        seen.append(found[0] if found is not None else None)
        expected.append(place)
        next(sample)
    return seen == expected


WORKS = _works()


def place_of(cycle: Any) -> CyclePlace | None:
    found = _read(cycle) if WORKS else None
    return found[0] if found is not None else None


def iterator_of(cycle: Any) -> Any:
    """What it draws from; None when its first pass is over, or nothing is known of it."""
    found = _read(cycle) if WORKS else None
    return found[1] if found is not None else None


def lead(cycle: Any, target: CyclePlace) -> None:
    """Draws until it is there. Raises StateMismatchError if it does not come there."""
    at_most = target.kept + (1 + target.kept if target.over else 0)
    for _ in range(at_most + 1):
        if place_of(cycle) == target:
            return
        next(cycle, None)
    raise StateMismatchError(
        f"an itertools.cycle does not come to its place here: {target.kept} items in its first pass"
    )
