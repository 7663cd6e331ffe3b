"""Write down what a loader's worker has changed in its data set, beside plain attributes and generators, and in the script's
variables.

That may be a cache of items, or a list that grows. It is written for a new worker, whose data set is as this one was when its
worker had begun. An object that was there then, and is unchanged, is referred to by its place. A tensor that looks into the memory
of such an object, as items of a data set in memory do, is written as such. A container that a variable leads to gets its content
in its place, since others may hold it.
"""

from __future__ import annotations

import io
import pickle
from collections.abc import Iterator, Mapping, Sequence
from types import BuiltinFunctionType, FunctionType, MappingProxyType, ModuleType
from typing import Any, NamedTuple

import torch

from torchrelay.shim.adapters.tensors.tensor_classes import has_graph
from torchrelay.shim.capture.iteration import generator_states
from torchrelay.shim.capture.iteration import marks as data_marks
from torchrelay.shim.capture.iteration.marks import ATOMS, COLLATE, Mark, Where
from torchrelay.shim.capture.state.parts import attributes, dataset_parts
from torchrelay.shim.capture.values import small
from torchrelay.shim.capture.values.kinds import PLAIN

MOST_BYTES = 256 << 10
"""The most bytes of one worker. They stand in each journal of the epoch, which is written in each step."""

Marks = Mapping[Where, Mark]
Parts = Mapping[tuple[Where, int], Any]
"""What was told of objects that lead nowhere, by the attribute and their place in its mark."""
_BY_NAME = (type, FunctionType, BuiltinFunctionType, ModuleType, tuple)
"""Nobody asks which object of these it is: they are found by their names, or cannot be changed."""


class _Limited(io.BytesIO):
    def __init__(self, most_bytes: int = MOST_BYTES) -> None:
        super().__init__()
        self._most_bytes = most_bytes

    def write(self, data: Any) -> int:
        if self.tell() + memoryview(data).nbytes > self._most_bytes:
            raise OverflowError("too large to be carried")
        return super().write(data)


class _Writer(pickle.Pickler):
    """Write. `filled`: what is filled in its place wherever this is read, by id, with where it is then.

    `changed`: marks of when the worker had begun, of attributes that have changed since; `parts`: what was told of parts then.
    """

    def __init__(
        self,
        written: Any,
        owners: Sequence[Any],
        unchanged: Marks,
        filled: Mapping[int, Any],
        changed: Marks = MappingProxyType({}),
        parts: Parts = MappingProxyType({}),
    ) -> None:
        super().__init__(written, pickle.HIGHEST_PROTOCOL)
        self._owners = {**filled, **{id(owner): number for number, owner in enumerate(owners)}}
        self._values: dict[int, tuple[int, torch.Tensor]] = {}
        """Tensors that are written by value, with their numbers, by where their memory is."""
        data = {where: mark for where, mark in unchanged.items() if type(where[0]) is int}
        same = [*_same_parts(changed, parts)]
        self._known = {id(obj): (where, place) for where, place, obj in (*same, *_objects(data))}
        self._of_variables = {
            id(obj) for where, mark in unchanged.items() if where not in data for obj in mark.met if _is_one_object(obj)
        }
        self._memory = {
            obj.untyped_storage().data_ptr(): (where, place, obj)
            for where, place, obj in (*same, *_objects(data))
            if type(obj) is torch.Tensor and obj.layout is torch.strided and obj.numel()
        }
        marks = {**changed, **unchanged}
        self._without_order = {where for where, mark in marks.items() if any(map(_has_no_order, mark.met))}

    def persistent_id(self, obj: Any) -> Any:
        if id(obj) in self._owners:
            return "owner", self._owners[id(obj)]
        if id(obj) in self._known:
            where, place = self._known[id(obj)]
            return "known", self._told(where), place
        if id(obj) in self._of_variables:
            raise pickle.PicklingError("part of a variable that is not told of")
        if not isinstance(obj, torch.Tensor):
            return None
        if type(obj) is not torch.Tensor or has_graph(obj) or obj.layout is not torch.strided:
            raise pickle.PicklingError("a tensor of another kind")
        where, place, owner = self._memory.get(obj.untyped_storage().data_ptr(), (COLLATE, -1, obj))
        if owner is obj or owner.dtype is not obj.dtype or not obj.numel():
            return self._by_value(obj)
        return "view", self._told(where), place, obj.storage_offset(), tuple(obj.shape), obj.stride()

    def _by_value(self, tensor: torch.Tensor) -> Any:
        """Return the tensor's content where it is met first, later its number.

        Raises PicklingError where two tensors look into the same memory: what is written to one is seen in the other.
        """
        memory = tensor.untyped_storage().data_ptr() if tensor.numel() else id(tensor)
        number, known = self._values.setdefault(memory, (len(self._values), tensor))
        if known is not tensor:
            raise pickle.PicklingError("two tensors with the same memory")
        return "value", number, tuple(small.take(tensor))

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


def told_of_parts(begun: Marks) -> Parts:
    """Return what tells of parts of data sets whether they are as they are now."""
    return {
        (where, place): told
        for where, place, obj in _objects({where: mark for where, mark in begun.items() if type(where[0]) is int})
        if (told := data_marks.as_it_is(obj)) is not None
    }


def _same_parts(changed: Marks, parts: Parts) -> Iterator[tuple[Where, int, Any]]:
    """Yield the parts of attributes that have changed which are as they were."""
    for (where, place), told in parts.items():
        if where in changed and data_marks.as_it_is(changed[where].met[place]) == told:
            yield where, place, changed[where].met[place]


def _is_one_object(obj: Any) -> bool:
    return type(obj) not in PLAIN and not isinstance(obj, _BY_NAME)


def _has_no_order(obj: Any) -> bool:
    return isinstance(obj, (set, frozenset)) and len(obj) > 1


class _Reader(pickle.Unpickler):
    def __init__(self, written: bytes, owners: Sequence[Any], begun: Marks) -> None:
        super().__init__(io.BytesIO(written))
        self._owners = owners
        self._begun = begun
        self._values: dict[int, torch.Tensor] = {}

    def persistent_load(self, pid: Any) -> Any:
        what, *where = pid
        if what == "owner":
            return self._owners[where[0]] if type(where[0]) is int else _filled(self._owners, where[0])
        if what == "value":
            number, content = where
            if number not in self._values:
                self._values[number] = small.build(small.TensorValue(*content))
            return self._values[number]
        there = self._begun[where[0]].met[where[1]]
        if what == "known":
            return there
        _, _, offset, shape, stride = where
        return torch.as_strided(there, shape, stride, offset)


def _filled(owners: Sequence[Any], where: Any) -> Any:
    """Return what is filled in its place: see `_in_place`."""
    if not where[0]:
        return generator_states.of_process()[where[1]]
    return attributes(owners[where[0][0]])[where[1]] if type(where[0]) is tuple else data_marks.variable(where)


def _in_place(owners: Sequence[Any]) -> dict[int, Any]:
    """Return what a new worker fills in its place, by id: containers and generators of variables, generators of data sets.

    Also the process's own generators, whose state is carried.
    """
    found: dict[int, Any] = dict(data_marks.containers())
    for where, value in data_marks.variables():
        if generator_states.is_generator(value):
            found.setdefault(id(value), where)
    for number, owner in enumerate(owners):
        _, below = dataset_parts(owner)
        found |= {id(value): ((number,), name) for name, value in below.items() if generator_states.is_generator(value)}
    return found | {id(generator): ("", name) for name, generator in generator_states.of_process().items()}


def write(
    owners: Sequence[Any],
    begun: Marks,
    now: Marks,
    unlike: Sequence[Where] = (),
    parts: Parts = MappingProxyType({}),
) -> bytes | None:
    """Return what a worker has changed in the data sets and variables, empty for nothing; None if it cannot be carried.

    `begun`, `now`: marks of when it had begun, and of this moment. `unlike`: plain variables that are told in any case, since a new
    worker would begin with another value. `parts`: what `told_of_parts` has told when the worker had begun.
    """
    names = [where for where in {**begun, **now} if where in unlike or _digest(begun, where) != _digest(now, where)]
    if not names:
        return b""
    if any(not name for _, name in names):
        return None
    gone = [where for where in names if where not in now]
    there = [where for where in names if where in now]
    unchanged = {where: mark for where, mark in now.items() if where not in names}
    written = _Limited()
    try:
        values = [(where, _value(owners, where, begun)) for where in there]
        changed = {where: begun[where] for where in names if where in begun}
        _Writer(written, owners, unchanged, _in_place(owners), changed, parts).dump((values, gone))
    except Exception:  # noqa: BLE001 - whatever the script's objects do when they are asked, it goes on
        return None
    return written.getvalue()


def _value(owners: Sequence[Any], where: Where, begun: Marks) -> Any:
    """Return what is written of an attribute or a variable: of an object that a variable leads to, what is in it.

    Raises PicklingError for a variable that has got another object which others may hold, too.
    """
    if type(where[0]) is int:
        return attributes(owners[where[0]])[where[1]]
    value = data_marks.variable(where)
    if not any(module == where[0] for module, _ in begun):
        raise pickle.PicklingError("of a module that a new worker has not imported yet")
    if type(value) in ATOMS:
        return value
    met = begun[where].met if where in begun else []
    if not met or met[0] is not value:
        raise pickle.PicklingError("another object in a variable")
    if generator_states.is_generator(value):
        if generator_states.has_attributes(value):
            raise pickle.PicklingError("a generator with attributes of its own")
        return _Within(generator_states.state_of(value))
    if not data_marks.is_container(value):
        raise pickle.PicklingError("an object whose content is not known")
    return _Within(data_marks.content_of(value))


class _Within(NamedTuple):
    """What is put into the object that a variable leads to."""

    content: Any


def written(value: Any, owners: Sequence[Any], most_bytes: int) -> bytes | None:
    """Return what hangs below one attribute, None where it cannot be carried. `owners`: data sets that it may lead to."""
    found = _Limited(most_bytes)
    try:
        _Writer(found, owners, {}, {}).dump(value)
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
    """Write the same into the data sets and variables of a worker that has just begun."""
    values, gone = _Reader(written, owners, begun).load()
    for where, value in values:
        if type(where[0]) is int:
            object.__setattr__(owners[where[0]], where[1], value)
            continue
        owner, name = data_marks.owner_of(where)
        there = vars(owner).get(name)
        if type(value) is not _Within:
            setattr(owner, name, value)
        elif generator_states.is_generator(there):
            generator_states.put(there, value.content)
        else:
            data_marks.refill(there, value.content)
    for where in gone:
        if type(where[0]) is int:
            object.__delattr__(owners[where[0]], where[1])
        else:
            delattr(*data_marks.owner_of(where))
