"""Words of memory that tell whether objects are as they were: thousands of them are read and compared in one go.

Leans on CPython's layout: the version of a dictionary (see `dict_versions`), the pointer to an instance's or a function's
dictionary (at `__dictoffset__`, or three words in front of the object where the interpreter manages it), and what a cell holds,
right behind its header. Each place is compared with what Python says of the same object before it is relied on, and where they
differ, or where dictionaries have no versions (3.14), the object has no words. Seen on CPython 3.11. They are read by
`index_select` of a tensor that spans the memory between the lowest and the highest of them, of which only they are touched.
"""

from __future__ import annotations

import ctypes
import itertools
from collections.abc import Sequence
from types import CellType, FunctionType
from typing import Any

import torch

from torchrelay.shim.adapters import dict_versions
from torchrelay.shim.adapters.memory import same_bytes

_WORD_BYTES = 8
_HEADER_BYTES = object.__basicsize__
_MANAGED_OFFSET = -3 * _WORD_BYTES
_AT_ONCE = 16_384
"""Words that torch reads without waking other threads for it, which the training may need."""


def _at(address: int) -> int:
    return ctypes.c_uint64.from_address(address).value


WORKS = dict_versions.OF_INSTANCES and ctypes.sizeof(ctypes.c_void_p) == _WORD_BYTES


def of_dict(space: dict[Any, Any]) -> int:
    """Where its version is: of an exact dict. Only where WORKS, as all below."""
    return id(space) + dict_versions.TAG_OFFSET


def of_fields(obj: Any) -> list[int]:
    """Of an object whose attributes are all in its `__dict__`: which dictionary that is, and its version. Empty if unknown."""
    fields = obj.__dict__
    if type(fields) is not dict:
        return []
    offset = type(obj).__dictoffset__
    for place in (offset, _MANAGED_OFFSET):
        if place != -1 and place % _WORD_BYTES == 0 and place != 0 and _at(id(obj) + place) == id(fields):
            return [id(obj) + place, of_dict(fields)]
    return []


def of_list(items: list[Any]) -> list[int]:
    """How many elements it has, and where they are."""
    return [id(items) + _HEADER_BYTES, id(items) + _HEADER_BYTES + _WORD_BYTES]


def of_function(function: FunctionType) -> list[int]:
    """Which dictionary its attributes are in, its version, and what its variables of outer functions are bound to."""
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

    sample = Sample()
    sample.__dict__["a"] = 1
    words = of_fields(sample)
    if not words:
        return False
    seen = [[*map(_at, words)]]
    kept = sample.__dict__  # alive: its memory is read
    for name, value in (("a", 2), ("b", 2), ("a", 3), ("__dict__", {"a": 3})):
        setattr(sample, name, value)
        seen.append([*map(_at, words)])
    del kept
    return all(before != after for before, after in itertools.pairwise(seen))


def _lists_work() -> bool:
    sample: list[Any] = [None] * 3
    length, place = of_list(sample)
    before = _at(length), _at(place)
    sample.extend([None] * 1000)
    return before[0] == 3 and _at(length) == 1003 and _at(place) != before[1]


WORKS = WORKS and _cells_work() and _fields_work() and _lists_work()


class Words:
    """At these addresses, which have to stay those of live objects for as long as they are looked at."""

    def __init__(self, addresses: Sequence[int], owners: Sequence[int]) -> None:
        with torch._C.DisableTorchFunction(), torch.inference_mode(False):
            places = torch.tensor(addresses, dtype=torch.int64, device="cpu")
            self._owners = torch.tensor(owners, dtype=torch.int64, device="cpu")
            self._lowest = int(places.min()) if len(addresses) else 0
            self._places = (places - self._lowest) // _WORD_BYTES
            count = int(self._places.max()) + 1 if len(addresses) else 0
            self._memory = self._spanned(count)
            self._now = self._saved = self._read()

    def _spanned(self, count: int) -> torch.Tensor:
        if not count:
            return torch.empty(0, dtype=torch.int64, device="cpu")
        return torch.frombuffer((ctypes.c_int64 * count).from_address(self._lowest), dtype=torch.int64)

    def _read(self) -> torch.Tensor:
        parts = self._places.split(_AT_ONCE)
        return (
            torch.cat([self._memory.index_select(0, part) for part in parts])
            if len(parts) > 1
            else (self._memory.index_select(0, self._places))
        )

    def look(self) -> set[int]:
        """Owners of words that are not what they were when they were last kept."""
        with torch._C.DisableTorchFunction():
            self._now = self._read()
            if same_bytes(self._now.data_ptr(), self._saved.data_ptr(), self._now.numel() * _WORD_BYTES):
                return set()
            return set(self._owners[self._now != self._saved].tolist())

    def keep(self) -> None:
        """What the latest look has seen is what later ones are compared with."""
        self._saved = self._now

    def forget(self, owners: set[int]) -> None:
        """Their words are not read any more."""
        with torch._C.DisableTorchFunction():
            gone = torch.tensor([*owners], dtype=torch.int64, device="cpu")
            stay = torch.isin(self._owners, gone, invert=True)
            self._owners, self._places = self._owners[stay], self._places[stay]
            self._saved, self._now = self._saved[stay], self._now[stay]
