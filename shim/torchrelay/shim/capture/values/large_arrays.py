"""Tell which arrays of numpy of more than 64 KiB are carried by value.

These are arrays that training has made, such as an evaluation's results, and arrays that it was seen to write to, such as a replay
buffer. Other arrays that set-up has made are data, and a new process has them by its own set-up: they cost nothing in a step.
"""

from __future__ import annotations

import sys
import weakref
from typing import Any

from torchrelay.shim.adapters.raw_memory.memory import same_bytes
from torchrelay.shim.capture.values.small import SMALL_BYTES

MOST_BYTES = 8 << 20
"""The most bytes of one array. Each array is compared with what it was at each boundary and gate."""
_ALL_BYTES = 16 << 20
_HEADER_BYTES = 4 << 10
"""The most bytes that may stand in front of an array in the bytes that were read."""
READ_ONLY = f"(a read-only array larger than {SMALL_BYTES >> 10} KiB)"
NEW_READ_ONLY = f"(a read-only array larger than {SMALL_BYTES >> 10} KiB, which set-up has not made)"
"""What names of such arrays end with that are not carried: nobody writes to them, but others may take their place."""


def is_large(array: Any) -> bool:
    """Return whether it takes this module to tell if the array's content is carried."""
    return bool(array.nbytes > SMALL_BYTES)


def is_same(now: Any, then: Any) -> bool:
    """Return whether a carried array equals the copy `then`, bit by bit and in its order."""
    if now.shape != then.shape or now.dtype != then.dtype or _order(now) != _order(then):
        return False
    return same_bytes(now.ctypes.data, then.ctypes.data, now.nbytes)


def _order(array: Any) -> tuple[bool, bool]:
    return array.flags.c_contiguous, array.flags.f_contiguous


class LargeArrays:
    """The large arrays of one process. An array that is met before `settle` is set-up's, unless `keep` was told of it."""

    def __init__(self) -> None:
        self._is_settled = False
        self._of_set_up: dict[int, weakref.ref[Any]] = {}
        self._carried: dict[int, weakref.ref[Any]] = {}
        self.has_more = False
        """Whether more are carried than when state was last walked from its beginning."""

    def settle(self) -> None:
        """Count arrays that are met for the first time from here on as made by training."""
        self._is_settled = True

    def keep(self, array: Any) -> None:
        """Carry this array on, whatever there is besides: a journal had it by value."""
        if is_large(array):
            self._carried[id(array)] = weakref.ref(array)

    def is_of_set_up(self, array: Any) -> bool:
        return _is_in(self._of_set_up, array)

    def is_carried(self, array: Any) -> bool:
        """Return whether the content of a large array is carried; once it is, it stays so."""
        if _is_in(self._carried, array):
            return True
        if not self._is_settled:
            self._of_set_up[id(array)] = weakref.ref(array)
        if _is_in(self._of_set_up, array) or _is_in(self._of_set_up, _memory(array)) or not self._has_room(array):
            return False
        self.keep(array)
        return True

    def carry_written(self, array: Any) -> bool:
        """Return whether an array of set-up's that training writes to is carried from the next walk on that begins anew."""
        if not array.flags.writeable or not self._has_room(array):
            return False
        self.keep(array)
        self.has_more = True
        return True

    def walked(self) -> None:
        """Note that state is being walked from its beginning."""
        self.has_more = False

    def _has_room(self, array: Any) -> bool:
        if array.nbytes > MOST_BYTES or not _has_memory_of_its_own(array):
            return False
        self._carried = {number: ref for number, ref in self._carried.items() if ref() is not None}
        others = [found for ref in self._carried.values() if (found := ref()) is not None]
        memory = _memory(array)
        # One with the memory of another one would be made with a memory of its own.
        return sum(other.nbytes for other in others) + array.nbytes <= _ALL_BYTES and not any(
            _memory(other) is memory for other in others
        )


def _is_in(known: dict[int, weakref.ref[Any]], array: Any) -> bool:
    ref = known.get(id(array))
    return ref is not None and ref() is array


def _memory(array: Any) -> Any:
    """Return the object whose memory the array looks at."""
    while getattr(array, "base", None) is not None:
        array = array.base
    return array


def _has_memory_of_its_own(array: Any) -> bool:
    """Return whether numpy alone has made its memory (not a file, a tensor, another process), and it is all of it, without gaps."""
    plain = sys.modules["numpy"].ndarray
    memory = _memory(array)
    if type(array) is not plain:
        return False
    if type(memory) is bytes:  # what was read from a file, by `numpy.frombuffer`
        return bool(len(memory) - array.nbytes <= _HEADER_BYTES and any(_order(array)))
    return bool(
        type(memory) is plain and array.flags.writeable and memory.nbytes == array.nbytes and any(_order(array))
    )
