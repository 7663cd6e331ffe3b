"""Write down what a loader's worker has changed in its data set, beside plain attributes and generators.

That may be a cache of items, or a list that grows. It is written for a new worker, whose data set is as this one was when its
worker had begun. An object that was there then, and is unchanged, is referred to by its place. A tensor that looks into the memory
of such an object, as items of a data set in memory do, is written as such.
"""

from __future__ import annotations

import io
import pickle
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch

from torchrelay.shim.adapters.tensors.tensor_classes import has_graph
from torchrelay.shim.capture.iteration.marks import COLLATE, Mark, Where
from torchrelay.shim.capture.state.parts import attributes
from torchrelay.shim.capture.values import small

MOST_BYTES = 256 << 10
"""The most bytes of one worker. They stand in each journal of the epoch, which is written in each step."""

Marks = Mapping[Where, Mark]


class _Limited(io.BytesIO):
    def __init__(self, most_bytes: int = MOST_BYTES) -> None:
        super().__init__()
        self._most_bytes = most_bytes

    def write(self, data: Any) -> int:
        if self.tell() + memoryview(data).nbytes > self._most_bytes:
            raise OverflowError("too large to be carried")
        return super().write(data)


class _Writer(pickle.Pickler):
    def __init__(self, written: Any, owners: Sequence[Any], unchanged: Marks) -> None:
        super().__init__(written, pickle.HIGHEST_PROTOCOL)
        self._owners = {id(owner): number for number, owner in enumerate(owners)}
        self._known = {id(obj): (where, place) for where, place, obj in _objects(unchanged)}
        self._memory = {
            obj.untyped_storage().data_ptr(): (where, place, obj)
            for where, place, obj in _objects(unchanged)
            if type(obj) is torch.Tensor and obj.layout is torch.strided and obj.numel()
        }
        self._without_order = {where for where, mark in unchanged.items() if any(map(_has_no_order, mark.met))}

    def persistent_id(self, obj: Any) -> Any:
        if id(obj) in self._owners:
            return "data set", self._owners[id(obj)]
        if id(obj) in self._known:
            where, place = self._known[id(obj)]
            return "known", self._told(where), place
        if not isinstance(obj, torch.Tensor):
            return None
        if type(obj) is not torch.Tensor or has_graph(obj) or obj.layout is not torch.strided:
            raise pickle.PicklingError("a tensor of another kind")
        where, place, owner = self._memory.get(obj.untyped_storage().data_ptr(), (COLLATE, -1, obj))
        if owner is obj or owner.dtype is not obj.dtype or not obj.numel():
            return "value", tuple(small.take(obj))
        return "view", self._told(where), place, obj.storage_offset(), tuple(obj.shape), obj.stride()

    def _told(self, where: Where) -> Where:
        """Return the place.

        Raises PicklingError where it means nothing in another process, which goes through sets in another order.
        """
        if where in self._without_order:
            raise pickle.PicklingError("part of what has no order")
        return where


def _objects(marks: Marks) -> Iterator[tuple[Where, int, Any]]:
    for where, mark in marks.items():
        for place, obj in enumerate(mark.met):
            yield where, place, obj


def _has_no_order(obj: Any) -> bool:
    return isinstance(obj, (set, frozenset)) and len(obj) > 1


class _Reader(pickle.Unpickler):
    def __init__(self, written: bytes, owners: Sequence[Any], begun: Marks) -> None:
        super().__init__(io.BytesIO(written))
        self._owners = owners
        self._begun = begun

    def persistent_load(self, pid: Any) -> Any:
        what, *where = pid
        if what == "data set":
            return self._owners[where[0]]
        if what == "value":
            return small.build(small.TensorValue(*where[0]))
        there = self._begun[where[0]].met[where[1]]
        if what == "known":
            return there
        _, _, offset, shape, stride = where
        return torch.as_strided(there, shape, stride, offset)


def write(owners: Sequence[Any], begun: Marks, now: Marks) -> bytes | None:
    """Return what a worker has changed in the data sets, empty for nothing; None if it cannot be carried.

    `begun`, `now`: marks of when it had begun, and of this moment.
    """
    names = [where for where in {**begun, **now} if _digest(begun, where) != _digest(now, where)]
    if not names:
        return b""
    if any(number < 0 or not name for number, name in names):
        return None
    unchanged = {where: mark for where, mark in now.items() if where not in names}
    values = [(number, name, attributes(owners[number])[name]) for number, name in names if (number, name) in now]
    gone = [where for where in names if where not in now]
    written = _Limited()
    try:
        _Writer(written, owners, unchanged).dump((values, gone))
    except Exception:  # noqa: BLE001 - whatever the script's objects do when they are asked, it goes on
        return None
    return written.getvalue()


def written(value: Any, owners: Sequence[Any], most_bytes: int) -> bytes | None:
    """Return what hangs below one attribute, None where it cannot be carried. `owners`: data sets that it may lead to."""
    found = _Limited(most_bytes)
    try:
        _Writer(found, owners, {}).dump(value)
    except Exception:  # noqa: BLE001 - as in `write`
        return None
    return found.getvalue()


def read(found: bytes, owners: Sequence[Any]) -> Any:
    """Make anew what `written` has told."""
    return _Reader(found, owners, {}).load()


def _digest(marks: Marks, where: Where) -> bytes | None:
    mark = marks.get(where)
    return None if mark is None else mark.digest


def put(written: bytes, owners: Sequence[Any], begun: Marks) -> None:
    """Write the same into the data sets of a worker that has just begun."""
    values, gone = _Reader(written, owners, begun).load()
    for number, name, value in values:
        object.__setattr__(owners[number], name, value)
    for number, name in gone:
        object.__delattr__(owners[number], name)
