"""Take digests that tell whether something that is not carried has changed: data sets, and the script's global variables."""

from __future__ import annotations

import hashlib
import pickle
import sys
import threading
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from multiprocessing import synchronize
from types import FunctionType, MappingProxyType, ModuleType
from typing import Any, NamedTuple

import torch
from torch.utils import data as torch_data

from torchrelay.shim.adapters.cpython import shared_values
from torchrelay.shim.capture.iteration import generator_states
from torchrelay.shim.capture.state.parts import attributes, dataset_parts
from torchrelay.shim.capture.values import callables
from torchrelay.shim.capture.values.base_types import file_of, length_of
from torchrelay.shim.capture.values.kinds import Kind, kind_of
from torchrelay.shim.tensors.tensor_versions import version_of

_LONG = 1000
_LARGE_BYTES = 1 << 16
"""Containers and arrays beyond this are data: a mark says which object each is and how long, not what is in it."""
_MARK_BYTES = 4 << 20
_TABLE = 200_000
"""Nobody looks through longer ones."""
ATOMS = frozenset({bool, bytes, complex, float, int, str, type(None)})
_CONTAINERS = frozenset({dict, list, set, deque, OrderedDict, defaultdict, Counter})
"""What can be given another content in its place: whoever holds it sees that."""


Told = tuple[Any, ...]
_LOCKS = (type(threading.Lock()), type(threading.RLock()), synchronize.SemLock)
"""Between two epochs nobody holds them."""


class _Digest:
    """A file that a mark is written to. Raises OverflowError when the mark is as long as data would be."""

    def __init__(self, most_bytes: int = _MARK_BYTES) -> None:
        self._hash = hashlib.sha256()
        self.left = most_bytes

    def write(self, data: Any) -> int:
        size = memoryview(data).nbytes
        self.left -= size
        if self.left < 0:
            raise OverflowError
        self._hash.update(data)
        return size

    def digest(self) -> bytes:
        return self._hash.digest()


class _Marker(pickle.Pickler):
    """Write a mark. `owners`: what has marks of its own, by id: data sets, and containers that variables lead to."""

    is_of_variables = True
    """A lock in what these lead to tells that it may be a package's machinery, such as a client of a service."""

    def __init__(self, written: Any, owners: Mapping[int, Any] = MappingProxyType({})) -> None:
        super().__init__(written, pickle.HIGHEST_PROTOCOL)
        self._functions: set[int] = set()
        self._owners = owners
        self.met: list[Any] = []

    def persistent_id(self, obj: Any) -> Any:
        if id(obj) in self._owners:
            return "owner", self._owners[id(obj)]
        if type(obj) in ATOMS:
            return None
        self.met.append(obj)
        if isinstance(obj, FunctionType) and callables.is_users_function(obj) and not _has_nothing_behind(obj):
            if id(obj) in self._functions:
                return "fixed", id(obj)
            self._functions.add(id(obj))
            return "function", id(obj), obj.__defaults__, obj.__kwdefaults__, vars(obj), [*_cells(obj)]
        return None if self.is_of_variables and _cannot_be_written(obj) else _told_of(obj)


class _OfData(_Marker):
    is_of_variables = False


class _Cautious(_Marker):
    """Write a mark of what leads to something that cannot be pickled, such as a lock: of that it says which object it is.

    An object of a package, such as a client of a service, is marked as a whole.
    """

    def reducer_override(self, obj: Any) -> Any:
        if callables.is_users_class(type(obj)) and getattr(type(obj), "__reduce_ex__", None) is object.__reduce_ex__:
            return NotImplemented
        written = _Digest()
        try:
            marker = _Marker(written, self._owners)
            marker.dump(obj)
        except Exception:  # noqa: BLE001 - whatever the script's objects do when they are asked, it goes on
            return int, (id(obj),)
        self.met += marker.met
        return bytes, (written.digest(),)


def _told_of(obj: Any) -> Told | None:
    """Return what a mark says of an object that it does not look into; None where it does."""
    if isinstance(obj, torch.Tensor):
        return "tensor", id(obj), obj.data_ptr(), version_of(obj)
    if isinstance(obj, (ModuleType, type, FunctionType, torch_data.DataLoader)) or _cannot_be_written(obj):
        return "fixed", id(obj)
    if isinstance(obj, (list, dict, set, tuple)) and length_of(obj) > _LONG:
        return "long", id(obj), length_of(obj)
    if getattr(obj, "nbytes", 0) > _LARGE_BYTES and not isinstance(obj, (bytes, bytearray)):
        return "large", id(obj), obj.nbytes
    return None


def as_it_is(obj: Any) -> Told | None:
    """Return what tells for certain that an object is still the same, with the same content; None where nothing does.

    So it is with a tensor, a long table of plain values, a lock, numbers in shared memory and a function with nothing behind it.
    """
    if isinstance(obj, torch.Tensor) or _cannot_be_written(obj):
        return _told_of(obj)
    if isinstance(obj, FunctionType):
        return ("fixed", id(obj)) if _has_nothing_behind(obj) else None
    if type(obj) in (list, dict, set, tuple) and _LONG < len(obj) <= _TABLE:
        content = _content_of_table(obj)
        return None if content is None else ("long", id(obj), content)
    return None


def _content_of_table(table: Any) -> bytes | None:
    """Return a digest of a table that leads to nothing but plain values, or tuples of such; else None."""
    written = _Digest()
    for item in table.items() if isinstance(table, dict) else table:
        for value in item if type(item) is tuple else (item,):
            if type(value) not in ATOMS and not (type(value) is tuple and ATOMS.issuperset(map(type, value))):
                return None
    try:
        pickle.Pickler(written, pickle.HIGHEST_PROTOCOL).dump(table)
    except OverflowError:
        return None
    return written.digest()


def _cannot_be_written(obj: Any) -> bool:
    """Return whether it is a lock, or numbers in shared memory that are no data: `shared_memory` tells what they are."""
    return isinstance(obj, _LOCKS) or (kind_of(type(obj)) is Kind.SHARED_VALUE and bool(shared_values.content(obj)))


def _has_nothing_behind(function: FunctionType) -> bool:
    return not (function.__closure__ or function.__defaults__ or function.__kwdefaults__ or vars(function))


def _cells(function: FunctionType) -> Iterator[Any]:
    for cell in function.__closure__ or ():
        try:
            yield cell.cell_contents
        except ValueError:  # of a variable that has no value yet
            yield None


def data_sets(data: Any) -> list[Any]:
    """Return the data set, and those below it."""
    found = [data]
    for owner in found:
        _, below = dataset_parts(owner)
        found += [d for d in below.values() if kind_of(type(d)) is Kind.DATASET and not any(d is f for f in found)]
    return found


class Mark(NamedTuple):
    """The mark of one attribute. `met`: the objects in it, in the order in which they are come across."""

    digest: bytes
    met: list[Any]


Where = tuple[int | str, str]
"""The place of a data set in `data_sets`, and the name of its attribute; without a name, its class is meant.

Of a variable, the name of its module, and its own name, in a class behind that of the class: `Class.name`.
"""
COLLATE: Where = -1, ""


def of_attributes(data: Any, collate: Any) -> dict[Where, Mark] | None:
    """Return marks of all that is not carried below a data set, and of what makes batches of its items; None if unknown."""
    owners = data_sets(data)
    numbers = {id(owner): number for number, owner in enumerate(owners)}
    found: dict[Where, Mark] = {}
    left = _MARK_BYTES
    try:
        for number, owner in enumerate(owners):
            plain, below = dataset_parts(owner)
            own = {name: v for name, v in attributes(owner).items() if name not in plain and name not in below}
            for name, value in {"": type(owner).__qualname__, **own}.items():
                found[number, name], left = _mark(value, numbers, left, _OfData)
        found[COLLATE], _ = _mark(collate, numbers, left, _OfData)
    except Exception:  # noqa: BLE001 - whatever the script's objects do when they are asked, it goes on
        return None
    return found


def _mark(
    value: Any, owners: Mapping[int, Any], most_bytes: int, marker_class: type[_Marker] = _Marker
) -> tuple[Mark, int]:
    written = _Digest(most_bytes)
    marker = marker_class(written, owners)
    marker.dump(value)
    return Mark(written.digest(), marker.met), written.left


def of_data(data: Any, collate: Any, shared: Iterable[Any] = ()) -> bytes | None:
    """Return one mark for all that `of_attributes` marks; None if it cannot be told.

    Two data sets with equal marks have the same content, but for what is long in it. `shared`: the numbers in shared memory that
    are carried; where there are others, it cannot be told.
    """
    found = of_attributes(data, collate)
    if found is None:
        return None
    carried = {*map(id, shared)}
    for mark in found.values():
        if any(id(obj) not in carried and kind_of(type(obj)) is Kind.SHARED_VALUE for obj in mark.met):
            return None
    return hashlib.sha256(repr([(where, mark.digest) for where, mark in found.items()]).encode()).digest()


def of_variables(owners: Sequence[Any] = ()) -> dict[Where, Mark]:
    """Return marks of the variables of the script's modules, and of those of their classes.

    Of what cannot be pickled a mark says which object it is. `owners`: data sets, which have marks of their own.
    """
    own = list(variables())
    known: dict[int, Any] = {id(generator): name for name, generator in generator_states.of_process().items()}
    known |= {**containers(own), **{id(owner): number for number, owner in enumerate(owners)}}
    found = {}
    for where, value in own:
        if is_container(value):
            mark = _of_variable(value, _told(value), known)
            found[where] = Mark(mark.digest, [value, *mark.met])
        else:
            found[where] = _of_variable(value, value, known)
    return found


def _of_variable(value: Any, told: Any, known: Mapping[int, Any]) -> Mark:
    for marker_class in (_Marker, _Cautious):
        try:
            return _mark(told, known, _MARK_BYTES, marker_class)[0]
        except OverflowError:
            break
        except Exception:  # noqa: BLE001 - as above
            continue
    return Mark(str(id(value)).encode(), [])


def _told(container: Any) -> tuple[int, Any]:
    return id(container), content_of(container) if len(container) <= _LONG else len(container)


def of_plain_variables() -> dict[Where, bytes]:
    """Return digests of the script's variables that hold a plain value, or a container of such, that are alike in each process."""
    found = {}
    for where, value in variables():
        told = value
        if is_container(value) and length_of(value) <= _LONG:
            told = content_of(value)
            items = (*value, *value.values()) if isinstance(value, dict) else told
            if not ATOMS.issuperset(map(type, items)):
                continue
        elif type(value) not in ATOMS:
            continue
        found[where] = hashlib.sha256(repr((type(value).__name__, told)).encode(errors="surrogatepass")).digest()
    return found


def containers(among: Iterable[tuple[Where, Any]] | None = None) -> dict[int, Where]:
    """Return the containers that variables of the script lead to, by id, each with the first such variable."""
    found: dict[int, Where] = {}
    for where, value in variables() if among is None else among:
        if is_container(value):
            found.setdefault(id(value), where)
    return found


def is_container(value: Any) -> bool:
    return type(value) in _CONTAINERS


def content_of(container: Any) -> Any:
    """Return what is in a container, as `refill` takes it."""
    return [*container.items()] if isinstance(container, dict) else [*container]


def refill(container: Any, content: list[Any]) -> None:
    """Give a container other content, in its place."""
    container.clear()
    if isinstance(container, list | deque):
        container.extend(content)
    elif isinstance(container, dict):
        container.update(dict(content))  # a Counter would count the pairs
    else:
        container.update(content)


def variable(where: Where) -> Any:
    """Return the value of a variable. Raises LookupError where there is none."""
    owner, name = owner_of(where)
    return vars(owner)[name]


def owner_of(where: Where) -> tuple[Any, str]:
    """Return the module or the class of a variable, and its name there. Raises LookupError where there is none."""
    cls, _, name = where[1].rpartition(".")
    module = sys.modules[str(where[0])]
    return (vars(module)[cls] if cls else module), name


def variables() -> Iterator[tuple[Where, Any]]:
    """Yield the variables of the script's modules and of their classes, with their places."""
    # A list of the items might begin a collection of garbage, which may import.
    for name, module in sys.modules.copy().items():
        if not callables.is_users(file_of(module)):
            continue
        for variable_name, value in dict(vars(module)).items():
            if variable_name.startswith("__") or isinstance(value, ModuleType):
                continue
            if not isinstance(value, type):
                yield (name, variable_name), value
            elif callables.is_users_class(value):
                own = dict(vars(value)).items()
                yield from (((name, f"{variable_name}.{k}"), v) for k, v in own if not k.startswith("__"))
