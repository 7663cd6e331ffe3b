"""Find the containers and objects below a data set that training changes. From then on they are state, like those of other objects.

That holds also for what a class or a script has given a loader.

A data set is data: thousands of items that stay as they are, and are not walked into. But a script may take items out between two
epochs, put harder ones in, relabel some, or turn up an augmentation, and a new process has what its own set-up made. So what hangs
below each data set is looked at where an outer loop's iteration begins, and at some boundaries. What has changed since the look
before is walked into from then on.

What a data set changes itself while it is drawn from, such as a cache of items, does not count: it does so in a new process too.
What the steps between two of its draws change counts: it is looked at behind the first draw and in front of the second. But a data
set may make something at its first draw out of what is state anyway, such as a reader of files from an entry that it takes out of
the configuration. A new process is given the configuration without the entry, so what was made of it is state too.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Container, Iterable, Mapping
from typing import Any, NamedTuple

from torch.utils.data import IterableDataset

from torchrelay.shim.adapters.raw_memory.list_pointers import pointers
from torchrelay.shim.capture.state.host_state import Deep
from torchrelay.shim.capture.state.parts import attributes, dataset_parts, loader_own, own_attributes
from torchrelay.shim.capture.values.base_types import deque_items, dict_items, fields, length_of, list_items, set_items
from torchrelay.shim.capture.values.by_identity import ByIdentity, held
from torchrelay.shim.capture.values.by_value import is_importable
from torchrelay.shim.capture.values.kinds import DATA, Kind, kind_of
from torchrelay.shim.tensors.tensor_versions import version_of

_MOST_OBJECTS = 4096
"""The most objects below one attribute. An attribute with more is known by its outermost container alone."""
_MOST_ARRAY_BYTES = 16 << 20
"""The most bytes of arrays below one attribute whose content is looked at. A further array is known by which object it is."""
_MOST_LIGHT_BYTES = 1 << 20
"""The most bytes of what is written at each head of an outer loop, and at boundaries behind it."""
_MOST_TENSOR_BYTES = 64 << 10
"""The most bytes of one tensor or array in that."""
_LONG = 4096
"""A longer list is told by which objects it holds."""
_BY_ITSELF = frozenset({Kind.TORCH_GENERATOR, Kind.PYTHON_RANDOM, Kind.NUMPY_RANDOM})
"""Kinds of objects that draws use and that a journal has by itself."""

_EACH = 8
"""Boundaries at which all is looked at; after these, powers of two, beside the iterations of outer loops."""

_carried: ByIdentity[set[str]] = ByIdentity()
"""By data set, the names of its attributes that are state."""


def is_due(boundary: int) -> bool:
    """Return whether data sets are looked at at this boundary."""
    return boundary <= _EACH or boundary.bit_count() == 1


def carried(owner: Any) -> dict[str, Any]:
    """Return the attributes of a data set that are state since training has changed them."""
    names = _names(owner)
    return {name: value for name, value in attributes(owner).items() if name in names} if names else {}


def carry(owner: Any, names: Iterable[str]) -> None:
    """Make these attributes of a data set state."""
    _carried.put(owner, {*_names(owner), *names})


def is_light(owner: Any, is_elsewhere: Callable[[Any], bool] = lambda data: False) -> bool:
    """Return whether the attributes of a data set, or what a loader was given, are little, and of kinds that can be written.

    `is_elsewhere`: of a data set or a loader below them, whether a new process has its own, so that nothing of it is written.
    """
    mark = _Mark(is_elsewhere)
    try:
        mark.each(own_attributes(owner).values())
    except OverflowError:
        return False
    tensors = (value for value in mark.met if kind_of(type(value)) in (Kind.TENSOR, Kind.NDARRAY))
    size_bytes = mark.plain_bytes + sum(value.nbytes for value in tensors)
    return size_bytes <= _MOST_LIGHT_BYTES and all(map(_is_light, mark.met))


def _is_light(value: Any) -> bool:
    kind = kind_of(type(value))
    if kind in (Kind.TENSOR, Kind.NDARRAY):
        return bool(value.nbytes <= _MOST_TENSOR_BYTES and (kind is Kind.TENSOR or value.dtype.kind != "O"))
    if kind in (Kind.FUNCTION, Kind.CLASS):
        return is_importable(value)
    if kind is Kind.MODULE:
        return _is_transform(value)
    return kind in _MARKS and (kind not in _ITEMS or length_of(value) <= _LONG)


def _is_transform(module: Any) -> bool:
    """Return whether a module is none that learns: such a one goes by its owner."""
    return next(module.parameters(), None) is None


def _names(owner: Any) -> set[str]:
    return _carried.get(owner) or set()


class _BeforeDraws(NamedTuple):
    """A data set before it was first drawn from in this process. `plain`: its attributes that had plain values."""

    marks: dict[str, Any]
    plain: frozenset[str]


class DataChanges:
    """Find changes of the data sets that training's state leads to, and of the data sets within them."""

    def __init__(self) -> None:
        self._before: ByIdentity[dict[str, Any]] = ByIdentity()
        """By data set, what was below its attributes when nobody drew from it."""
        self._within: ByIdentity[list[Callable[[], Any]]] = ByIdentity()
        """By data set that is drawn from in this process, the data set itself and the data sets within it."""
        self.changed: ByIdentity[None] = ByIdentity()
        """Data sets that something beside their draws has changed."""
        self._behind_draw: ByIdentity[dict[str, Any]] = ByIdentity()
        """By data set that was drawn from in this process, what was below its attributes then; kept until the next draw."""
        self._before_draws: ByIdentity[_BeforeDraws] = ByIdentity()
        self.is_pending = False
        """Whether a pass over a data set in this process is over that was not looked at since."""
        self._is_settled = False

    def settle(self) -> None:
        """Note that training has begun.

        Until then set-up makes data sets, part by part, and a new process makes them by its own set-up.
        """
        self._is_settled = True

    def drawn(self, dataset: Any) -> None:
        """Note that a data set is drawn from in this process, which may change it: how it was before tells nothing any more."""
        within = self._within.get(dataset)
        if within is None:
            within = [*map(held, (dataset, *data_sets_below(dataset)))]
            self._within.put(dataset, within)
        for there in within:
            owner = there()
            if owner is None:
                continue
            behind = self._behind_draw.get(owner)
            if behind is not None:
                self._behind_draw.pop(owner)
                self._compare(owner, behind, _marks(owner))
            if self._before_draws.get(owner) is None:
                self._before_draws.put(owner, _BeforeDraws(_marks(owner), frozenset(dataset_parts(owner)[0])))
            self._before.pop(owner)

    def has_yielded(self, dataset: Any) -> None:
        """Note that a data set has yielded an item in this process. What changes until the next item is the work of the step."""
        for there in self._within.get(dataset) or ():
            owner = there()
            if owner is not None:
                self._behind_draw.put(owner, _marks(owner))

    def changed_by_draws(self, owner: Any) -> set[str]:
        """Return the attributes of a data set that are not as they were before it was first drawn from in this process."""
        before = self._before_draws.get(owner)
        if before is None:
            return set()
        now = _marks(owner)
        return {name for name in {**now, **before.marks} if now.get(name) != before.marks.get(name)}

    def is_drawn(self, dataset: Any) -> None:
        """Note that all was drawn from a data set for now."""
        self.is_pending = True
        for there in self._within.get(dataset) or ():
            owner = there()
            if owner is not None:
                self._note(owner)

    def look(self, datasets: Iterable[Any]) -> None:
        """Make state what was changed since the look before."""
        for outer in datasets:
            for owner in (outer, *data_sets_below(outer)):
                known = self._before.get(owner)
                now = self._note(owner)
                if known is not None:
                    self._compare(owner, known, now)

    def _compare(self, owner: Any, known: Mapping[str, Any], now: Mapping[str, Any]) -> None:
        if not self._is_settled or now == known:
            return
        self.changed.put(owner, None)
        if not self._streams_here(owner):
            carry(owner, {name for name in now if name and now[name] != known.get(name)})

    def look_at_made(self, datasets: Iterable[Any], state: Container[int]) -> None:
        """Make state what data sets have made at their draws out of what is state. `state`: ids of its objects."""
        self.is_pending = False
        for outer in datasets:
            for owner in (outer, *data_sets_below(outer)):
                before = self._before_draws.get(owner)
                made = _made_since(owner, before.plain) if before is not None else set()
                if before is None or made <= _names(owner):
                    continue
                now = _marks(owner)
                changed = {name for name in now if name and name not in made and now[name] != before.marks.get(name)}
                if any(id(found) in state for name in changed for found in _below(attributes(owner)[name])):
                    carry(owner, made)

    def _streams_here(self, owner: Any) -> bool:
        """Return whether a data set is drawn from in this process and goes on from where it is: going back leaves it there."""
        drawn = (within() for known in self._within.values() for within in known)
        return issubclass(type(owner), IterableDataset) and any(within is owner for within in drawn)

    def _note(self, owner: Any) -> dict[str, Any]:
        now = _marks(owner)
        self._before.put(owner, now)
        return now


def _made_since(owner: Any, plain: frozenset[str]) -> set[str]:
    """Return the attributes that had plain values, and hold objects now."""
    now = dataset_parts(owner)[0]
    return {name for name in plain if name not in now and name in attributes(owner)}


def _below(value: Any) -> list[Any]:
    """Return the value and what it holds, as far as marks go."""
    mark = _Mark()
    mark.of(value)
    return mark.met


def _marks(owner: Any) -> dict[str, Any]:
    """Return a mark for each attribute that is not state by itself, and one, without a name, for the plain attributes."""
    plain, below = dataset_parts(owner)
    known = {**plain, **below, **(loader_own(owner) if kind_of(type(owner)) is Kind.LOADER else {})}
    others = {name: value for name, value in own_attributes(owner).items() if name not in known}
    return {"": _Mark().of(plain), **{name: _Mark().of(value) for name, value in others.items()}}


class _Mark:
    """The mark of one attribute: plain values by value, containers by their items, all else by which object it is."""

    def __init__(self, is_elsewhere: Callable[[Any], bool] = lambda data: False) -> None:
        self._is_elsewhere = is_elsewhere
        self._left = _MOST_OBJECTS
        self.left_bytes = _MOST_ARRAY_BYTES
        self.plain_bytes = 0
        """The length of the texts and bytes that were come across."""
        self._seen: dict[int, int] = {}
        self.met: list[Any] = []
        """Objects in the order in which they were come across; held, since they are known by their addresses."""

    def of(self, value: Any) -> Any:
        kind = kind_of(type(value))
        try:
            return self._of(value, kind)
        except OverflowError:
            return kind, id(value), length_of(value) if kind in _ITEMS else 0

    def _of(self, value: Any, kind: Kind) -> Any:
        if kind is Kind.PLAIN:
            if type(value) in (str, bytes):
                self.plain_bytes += len(value)
            return (type(value), value) if type(value) in _SIMPLE else (kind, id(value))
        known = self._seen.get(id(value))
        if known is not None:
            return "met", known
        self._seen[id(value)] = len(self._seen)
        if kind in DATA and self._is_elsewhere(value):
            return kind, id(value)
        self.met.append(value)
        take = _MARKS.get(kind)
        return (kind, id(value)) if take is None else (kind, take(self, value))

    def each(self, values: Iterable[Any]) -> tuple[Any, ...]:
        found = []
        for value in values:
            self._left -= 1
            if self._left < 0:
                raise OverflowError("too much to be looked at")
            found.append(self._of(value, kind_of(type(value))))
        return tuple(found)

    def items(self, values: list[Any]) -> Any:
        if len(values) > min(_LONG, self._left):
            return len(values), zlib.crc32(pointers(values))
        return self.each(values)

    def mapping(self, values: Mapping[Any, Any]) -> Any:
        return self.each(values), self.items([*values.values()])


_SIMPLE = frozenset({bool, bytes, complex, float, int, str, type(None)})
_ITEMS: Mapping[Kind, Callable[[Any], Any]] = {
    Kind.LIST: list_items,
    Kind.DEQUE: deque_items,
    Kind.TUPLE: lambda value: [*tuple.__iter__(value)],
    Kind.DICT: dict_items,
    Kind.SET: set_items,
}


def _of_tensor(mark: _Mark, value: Any) -> Any:
    return id(value), version_of(value)


def _of_array(mark: _Mark, value: Any) -> Any:
    if value.dtype.kind == "O" or value.nbytes > mark.left_bytes:
        return id(value), value.nbytes
    mark.left_bytes -= value.nbytes
    data = value if value.flags.c_contiguous else value.copy()
    return value.shape, str(value.dtype), zlib.crc32(data.reshape(-1).view("u1"))


def _of_set(mark: _Mark, value: Any) -> Any:
    items = set_items(value)
    return frozenset(items) if all(type(item) in _SIMPLE for item in items) else frozenset(map(id, items))


_MARKS: Mapping[Kind, Callable[[_Mark, Any], Any]] = {
    Kind.LIST: lambda mark, value: mark.items(list_items(value)),
    Kind.DEQUE: lambda mark, value: mark.items(deque_items(value)),
    Kind.TUPLE: lambda mark, value: mark.items([*tuple.__iter__(value)]),
    Kind.DICT: lambda mark, value: mark.mapping(dict_items(value)),
    Kind.SET: _of_set,
    Kind.ATTRS: lambda mark, value: mark.mapping(attributes(value)),
    Kind.DATASET: lambda mark, value: mark.mapping(attributes(value)),
    Kind.MODULE: lambda mark, value: mark.mapping(attributes(value)) if _is_transform(value) else id(value),
    Kind.TENSOR: _of_tensor,
    Kind.NDARRAY: _of_array,
    **dict.fromkeys(_BY_ITSELF, lambda mark, value: None),
}


def data_sets_below(outer: Any) -> list[Any]:
    """Return the data sets in the attributes of another one, and in containers there."""
    return [*ways_to_data_sets(outer).values()]


def ways_to_data_sets(outer: Any) -> dict[Deep, Any]:
    """Return the data sets in the attributes of another one, and in containers there, by the way to each."""
    found: dict[Deep, Any] = {}
    seen = {id(outer)}
    queue: list[tuple[tuple[Any, ...], Any]] = [((), outer)]
    for way, owner in queue:
        for name, value in (fields(owner) or {}).items():
            kind = kind_of(type(value))
            if kind not in (Kind.LIST, Kind.TUPLE, Kind.DICT):
                items: Any = {(): value}
            elif length_of(value) > _LONG:
                continue
            else:
                items = _ITEMS[kind](value)
                items = {(key,): item for key, item in (items.items() if kind is Kind.DICT else enumerate(items))}
            for key, item in items.items():
                if kind_of(type(item)) is Kind.DATASET and id(item) not in seen:
                    seen.add(id(item))
                    found[Deep((*way, name, *key))] = item
                    queue.append(((*way, name, *key), item))
    return found
