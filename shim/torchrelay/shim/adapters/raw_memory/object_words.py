"""Tell from words of memory whether objects are unchanged: thousands of words are read and compared in one go.

Leans on CPython's layout: the version of a dictionary (see `dict_versions`), an object's class at the end of its header, the
pointer to an instance's or a function's dictionary (at `__dictoffset__`, or three words in front of the object where Python manages
it), what a cell holds and how long a list is, right behind their headers. Each place is compared with what Python says of
the same object before it is relied on. Where they differ, or where dictionaries have no versions (3.14), the object has no words.
Seen on CPython 3.11. The words are read by `index_select` of a tensor that spans the memory between the lowest and the highest of
them, of which only they are touched.
"""

from __future__ import annotations

import ctypes
import itertools
from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from types import CellType, FunctionType
from typing import Any

import torch

from torchrelay.shim.adapters.raw_memory import dict_versions
from torchrelay.shim.adapters.raw_memory.memory import same_bytes

_WORD_BYTES = 8
_HEADER_BYTES = object.__basicsize__
_CLASS_OFFSET = _HEADER_BYTES - _WORD_BYTES
_MANAGED_OFFSET = -3 * _WORD_BYTES
_AT_ONCE = 16_384
"""Words that torch reads without waking other threads for it, which the training may need."""


def _at(address: int) -> int:
    return ctypes.c_uint64.from_address(address).value


WORKS = dict_versions.OF_INSTANCES and ctypes.sizeof(ctypes.c_void_p) == _WORD_BYTES


def of_dict(space: dict[Any, Any]) -> int:
    """Return the address of the version of an exact dict. Only where WORKS, as all below."""
    return id(space) + dict_versions.TAG_OFFSET


def of_fields(obj: Any) -> list[int]:
    """Return the addresses that tell of an object's attributes: its class, which dictionary they are in, and its version.

    Empty if unknown. All attributes have to be in the object's `__dict__`.
    """
    fields = obj.__dict__
    if type(fields) is not dict:
        return []
    offset = type(obj).__dictoffset__
    for place in (offset, _MANAGED_OFFSET) if offset > 0 else (_MANAGED_OFFSET,):
        if place % _WORD_BYTES == 0 and _at(id(obj) + place) == id(fields):
            return [id(obj) + _CLASS_OFFSET, id(obj) + place, of_dict(fields)]
    return []


def of_length(items: list[Any]) -> int:
    """Return the address of the list's length."""
    return id(items) + _HEADER_BYTES


def of_function(function: FunctionType) -> list[int]:
    """Return the addresses that tell of a function.

    They tell which dictionary its attributes are in, its version, and what its variables of outer functions are bound to.
    """
    found = of_fields(function)
    return [*found, *map(_of_cell, function.__closure__ or ())] if found else []


def _of_cell(cell: CellType) -> int:
    return id(cell) + _HEADER_BYTES


def _cells_work() -> bool:
    cell = CellType(WORKS)
    before = _at(_of_cell(cell))
    cell.cell_contents = found = object()
    return before == id(WORKS) and _at(_of_cell(cell)) == id(found)


def _fields_work() -> bool:
    class Sample:
        pass

    class Other(Sample):
        pass

    sample = Sample()
    sample.__dict__["a"] = 1
    words = of_fields(sample)
    if not words:
        return False
    seen = [[*map(_at, words)]]
    kept = sample.__dict__  # alive: its memory is read
    for name, value in (("a", 2), ("b", 2), ("a", 3), ("__class__", Other), ("__dict__", {"a": 3})):
        setattr(sample, name, value)
        seen.append([*map(_at, words)])
    del kept
    return all(before != after for before, after in itertools.pairwise(seen))


def _lengths_work() -> bool:
    sample: list[Any] = []
    place = of_length(sample)
    seen = [_at(place)]
    for more in (1, 1000):
        sample += [None] * more
        seen.append(_at(place))
    sample.clear()
    seen.append(_at(place))
    return seen == [0, 1, 1001, 0]


WORKS = WORKS and _cells_work() and _fields_work() and _lengths_work()


class Words:
    """Words at these addresses, which have to stay those of live objects for as long as they are looked at."""

    def __init__(self, addresses: Sequence[int], owners: Sequence[int]) -> None:
        """Watch these addresses. `owners`: in order, one for each address."""
        self._nothing: list[Any] = []
        """Stays empty: its length is read last, and in place of what was forgotten."""
        addresses = [*addresses, of_length(self._nothing)]
        self._owner_of = [*owners]
        with torch._C.DisableTorchFunction(), torch.inference_mode(False):
            places = torch.tensor(addresses, dtype=torch.int64, device="cpu")
            self._lowest = int(places.min())
            self._places = (places - self._lowest) // _WORD_BYTES
            self._memory = self._spanned(int(self._places.max()) + 1)
            self._now = self._saved = self._read()

    def _spanned(self, count: int) -> torch.Tensor:
        return torch.frombuffer((ctypes.c_int64 * count).from_address(self._lowest), dtype=torch.int64)

    def _read(self) -> torch.Tensor:
        parts = [self._memory.index_select(0, part) for part in self._places.split(_AT_ONCE)]
        return torch.cat(parts) if len(parts) > 1 else parts[0]

    def look(self) -> set[int]:
        """Return the owners of words that have changed since they were last kept."""
        with torch._C.DisableTorchFunction():
            self._now = self._read()
            if same_bytes(self._now.data_ptr(), self._saved.data_ptr(), self._now.numel() * _WORD_BYTES):
                return set()
            parts = zip(self._now.split(_AT_ONCE), self._saved.split(_AT_ONCE), strict=True)
            places = [torch.ne(now, saved).nonzero().flatten().tolist() for now, saved in parts]
        known = self._owner_of
        return {known[part * _AT_ONCE + place] for part, found in enumerate(places) for place in found}

    def keep(self) -> None:
        """Compare later looks with what the latest look has seen."""
        self._saved = self._now

    def forget(self, owners: set[int]) -> None:
        """Read the words of these owners no more."""
        known = self._owner_of
        gone = [n for owner in owners for n in range(bisect_left(known, owner), bisect_right(known, owner))]
        if gone:
            with torch._C.DisableTorchFunction(), torch.inference_mode(False):
                at = torch.tensor(gone, dtype=torch.int64, device="cpu")
                self._places.index_fill_(0, at, int(self._places[-1]))
                self._saved.index_fill_(0, at, 0)
