"""Read in which places of its table a set has its elements, and put them there.

What a set yields next, by iteration or `pop`, goes by these places, and they by all that was ever added and taken away: a set of
the same elements may have another order. Reads and writes `PySetObject` of CPython: behind the object's header the numbers of
places that are used or were, of elements, the mask, the address of the table, the hash, and where `pop` goes on. An entry is an
address and a hash; one that was taken away has the address of a mark of its own. A set of some elements is tried when the first one
is met, and all are left alone (None) where it does not come back. Seen on CPython 3.10 to 3.13.
"""

from __future__ import annotations

import ctypes
import functools
import struct
import sys
from array import array
from collections.abc import Sequence
from typing import Any, NamedTuple

from torchrelay.shim.adapters.cpython.generator_frames import decref, incref
from torchrelay.shim.adapters.raw_memory.memory import read

_HEAD = object.__basicsize__
_NUMBERS = struct.Struct("qqqqqq")
_ENTRY_BYTES = 16
_SMALLEST = 8
LARGEST = 1 << 16
"""Larger tables are left alone: to read one takes a millisecond and more."""
_KNOWN = sys.implementation.name == "cpython" and ctypes.sizeof(ctypes.c_void_p) == 8 and set.__basicsize__ == 200


class Numbers(NamedTuple):
    """What tells, beside the elements in their order, whether a table is unchanged."""

    fill: int
    used: int
    mask: int
    finger: int


class SetTable(NamedTuple):
    """The places of the elements, in their order, and of marks of elements that were taken away. `finger`: where `pop` goes on."""

    size: int
    finger: int
    places: bytes
    marks: bytes


def numbers(obj: Any) -> Numbers | None:
    """Return the numbers of a set; None where they cannot be read."""
    if not _works():
        return None
    fill, used, mask, _, _, finger = _NUMBERS.unpack(read(id(obj) + _HEAD, _NUMBERS.size))
    return Numbers(fill, used, mask, finger)


def table_of(obj: Any) -> SetTable | None:
    """Return the table of a set; None where it cannot be read, or is too large."""
    return _read(obj) if _works() else None


def put(obj: Any, items: Sequence[Any], table: SetTable) -> bool:
    """Give a set these elements in these places. Return whether they could be put there; if not, it has any content."""
    if not _works() or not _write(obj, items, table):
        return False
    return set.__len__(obj) == len(items) and all(set.__contains__(obj, item) for item in items)


def _read(obj: Any) -> SetTable | None:
    _, _, mask, address, _, finger = _NUMBERS.unpack(read(id(obj) + _HEAD, _NUMBERS.size))
    if mask >= LARGEST:
        return None
    keys = memoryview(read(address, (mask + 1) * _ENTRY_BYTES)).cast("Q")[::2].tolist()
    mark = _mark()
    places = array("I", [place for place, key in enumerate(keys) if key and key != mark])
    marks = array("I", [place for place, key in enumerate(keys) if key == mark])
    return SetTable(mask + 1, finger, places.tobytes(), marks.tobytes())


def _write(obj: Any, items: Sequence[Any], table: SetTable) -> bool:
    places = array("I", table.places)
    marks = array("I", table.marks)
    size = table.size
    if len(places) != len(items) or not _fits(size, places, marks, table.finger):
        return False
    hashes = [*map(hash, items)]
    set.clear(obj)
    if size > _SMALLEST:
        set.update(obj, {*range(size // 2 - 1)})  # which makes room for twice as many and one more
    _, _, mask, address, _, _ = _NUMBERS.unpack(read(id(obj) + _HEAD, _NUMBERS.size))
    if mask != size - 1:
        return False
    fillers = [*set.__iter__(obj)]
    entries = (ctypes.c_int64 * (2 * size))()
    mark = _mark()
    for place in marks:
        entries[2 * place : 2 * place + 2] = [mark, -1]
    for place, item, value in zip(places, items, hashes):
        entries[2 * place : 2 * place + 2] = [id(item), value]
    for item in items:
        incref(id(item))
    ctypes.memmove(address, entries, size * _ENTRY_BYTES)
    head = ctypes.c_int64 * 6
    now = head.from_address(id(obj) + _HEAD)
    now[0] = len(items) + len(marks)
    now[1] = len(items)
    now[5] = table.finger
    for filler in fillers:
        decref(id(filler))
    return True


def _fits(size: int, places: array[int], marks: array[int], finger: int) -> bool:
    taken = {*places, *marks}
    whole = len(taken) == len(places) + len(marks) < size and all(place < size for place in taken)
    return whole and _SMALLEST <= size <= LARGEST and size & (size - 1) == 0 and finger >= 0


@functools.cache
def _mark() -> int:
    """Return the address that stands for an element that was taken away."""
    sample = {1}
    sample.discard(1)
    _, _, mask, address, _, _ = _NUMBERS.unpack(read(id(sample) + _HEAD, _NUMBERS.size))
    keys = memoryview(read(address, (mask + 1) * _ENTRY_BYTES)).cast("Q")[::2].tolist()
    found = [key for key in keys if key]
    return found[0] if len(found) == 1 else 0


@functools.cache
def _works() -> bool:
    """Return whether a set of some elements, some of which were taken away, comes back as it was."""
    if not _KNOWN or not getattr(sys, "_is_gil_enabled", lambda: True)():
        return False
    sample: set[Any] = {*range(0, 900, 7)}
    if _NUMBERS.unpack(read(id(sample) + _HEAD, _NUMBERS.size))[1] != len(sample) or not _mark():
        return False
    for _ in range(40):
        sample.discard(sample.pop() + 70)
    sample |= {"a word", (3, "b"), 2.5}
    items = [*sample]
    table = _read(sample)
    other: set[Any] = {*reversed(items)}
    if table is None or not _write(other, items, table):
        return False
    again = [other.pop() for _ in range(len(items))]
    return again == [sample.pop() for _ in range(len(items))] and not other and not sample
