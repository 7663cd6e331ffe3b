"""Read where an `itertools.cycle` stands, and put one there.

In its first pass it draws from an iterator and keeps what it gets; later it yields that again. Leans on what the garbage collector
says of it (its iterator, as long as there is one, and the list of kept items) and on its place in that list, which lies behind both
in `cycleobject`. Seen on CPython 3.10 to 3.13. It is tried on a sample when this module is imported. Where that disagrees, nothing
is known of any cycle (None), and the protection report names it.
"""

from __future__ import annotations

import ctypes
import gc
import itertools
from typing import Any, NamedTuple

from torchrelay.shim.adapters.cpython import plain_iterators as plain

_INDEX_AT = object.__basicsize__ + 2 * ctypes.sizeof(ctypes.c_void_p)


class CyclePlace(NamedTuple):
    """`kept`: how many items it has kept.

    `over`: whether its first pass is over. `following`: the next item's index in later passes.
    """

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
    """Return the iterator that the cycle draws from; None when its first pass is over, or where nothing is known of it."""
    found = _read(cycle) if WORKS else None
    return found[1] if found is not None else None


class CycleStand(NamedTuple):
    """Where a cycle of this process stands, so that it can be put back there. `words`: the words of its object."""

    place: CyclePlace
    words: plain.IteratorPlace


def stand_of(cycle: Any) -> CycleStand | None:
    place = place_of(cycle)
    words = plain.read(cycle)
    return CycleStand(place, words) if place is not None and words is not None else None


def put_back(cycle: Any, stand: CycleStand) -> None:
    """Put the cycle back to where it stood, and let it forget the items kept since. `stand`: an earlier one of the same cycle."""
    (kept,) = [value for value in stand.words.held.values() if type(value) is list]
    del kept[stand.place.kept :]
    plain.write(cycle, stand.words)


def put(cycle: Any, place: CyclePlace, source: Any, kept: list[Any]) -> None:
    """Put another process's cycle to a place. `source`: what its first pass draws from; `kept`: what it has yielded."""
    sample = itertools.cycle(iter(()))
    words = plain.read(sample)
    assert words is not None
    (iterator_at,) = [n for n, value in words.held.items() if type(value) is not list]
    (kept_at,) = [n for n, value in words.held.items() if type(value) is list]
    numbers = list(words.numbers)
    numbers[kept_at + 1] = place.following
    held = {kept_at: kept} if place.over else {iterator_at: source, kept_at: kept}
    plain.write(cycle, plain.IteratorPlace(tuple(numbers), held))
