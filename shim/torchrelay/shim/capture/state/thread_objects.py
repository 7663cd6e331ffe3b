"""Objects that threads work with which fetch ahead for training, and who changes them: such a thread, or training.

What a thread changes is where that thread is, and not where training is: it is neither put back nor carried. A process's own
threads bring it there. What training changes is state as anything else. Who it is was seen while one of the two stood still.
"""

from __future__ import annotations

import sys
import threading
import zlib
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from types import CodeType, FrameType, FunctionType
from typing import Any, NamedTuple

from torchrelay.shim.adapters.cpython import frames, plain_iterators
from torchrelay.shim.adapters.cpython.csv_readers import lines_of
from torchrelay.shim.capture.state.parts import attributes, numpy_random_state
from torchrelay.shim.capture.values import callables
from torchrelay.shim.capture.values.alike import alike
from torchrelay.shim.capture.values.base_types import dict_items, length_of, list_items, tuple_items
from torchrelay.shim.capture.values.kept import KEPT
from torchrelay.shim.capture.values.kinds import PLAIN, Kind, kind_of
from torchrelay.shim.script.hidden_frames import is_ours
from torchrelay.shim.tensors.tensor_versions import version_of

_MOST_OBJECTS = 1024
"""They are looked for at each boundary, which takes 2 to 3 us each."""
_MOST_CODE = 2000
_MOST_ITEMS = 1000
"""What is in a longer container is not looked into."""
_LARGE_BYTES = 16 << 20
"""Larger arrays are not carried."""
_WITH_ATTRIBUTES = frozenset({Kind.ATTRS, Kind.DATASET, Kind.LOADER, Kind.LOADER_ITER, Kind.UNKNOWN})
_OF_EVERY_THREAD = frozenset(vars(threading.Thread()))
_LEAVES = frozenset(
    {
        Kind.PYTHON_RANDOM,
        Kind.NUMPY_RANDOM,
        Kind.TORCH_GENERATOR,
        Kind.NDARRAY,
        Kind.OBJECT_ARRAY,
        Kind.BYTEARRAY,
        Kind.FILE,
        Kind.TENSOR,
        Kind.SHARED_VALUE,
    }
)
_CONTAINERS = frozenset({"list", "dict", "tuple", "deque", "set", "threading.Thread"})
_WRITES_ANY = frozenset({"setattr", "__setattr__", "__dict__", "vars", "exec", "eval"})
"""Names of what changes attributes that the code does not name."""
_STARTERS = frozenset({"threading", "queue"})
"""Modules between what starts a thread and what the script runs in it."""


class PartName(NamedTuple):
    """How an object's part is known in every process: the class that has it, and its name or key there."""

    holder: str
    name: str


class _Reached(NamedTuple):
    obj: Any
    way: PartName
    """By which it was first reached."""


class ThreadObjects:
    def __init__(self) -> None:
        self._objects: dict[int, _Reached] = {}
        self._threads: frozenset[threading.Thread] = frozenset()
        self._names: frozenset[str] | None = frozenset()
        """What the threads' code may name; None where that cannot be told."""
        self._several: frozenset[str] = frozenset()
        """Classes of which one thread works with more than one object."""
        self.is_cut = False
        """Whether threads work with more than is looked at."""
        self.by_training: set[PartName] = set()
        self.by_threads: set[PartName] = set()

    def __bool__(self) -> bool:
        return bool(self._objects)

    @property
    def known(self) -> tuple[tuple[tuple[str, str], ...], ...]:
        """Return what training, and what threads are known to change, as plain values."""
        return tuple((*way,) for way in sorted(self.by_training)), tuple((*way,) for way in sorted(self.by_threads))

    def learn(self, by_training: Iterable[tuple[str, str]], by_threads: Iterable[tuple[str, str]]) -> None:
        """Take over what another process has come to know, as `known` has it."""
        self.by_training |= {PartName(*way) for way in by_training}
        self.by_threads |= {PartName(*way) for way in by_threads}

    def look(self, threads: Iterable[threading.Thread]) -> None:
        """Look what these threads work with now. `threads`: all that run and fetch ahead."""
        now = frozenset(threads)
        if now != self._threads:
            self._threads = now
            self._names = frozenset()
            self.look_again()

    def look_also(self, threads: Iterable[threading.Thread]) -> None:
        """Look what threads work with that have begun since the latest look. What ended ones worked with still counts as theirs."""
        for thread in frozenset(threads) - self._threads:
            self._objects = _reached(thread) | self._objects

    def look_again(self) -> None:
        self._objects = {}
        several = set[str]()
        for thread in self._threads:
            found = _reached(thread)
            self._objects |= found
            self.is_cut = self.is_cut or len(found) >= _MOST_OBJECTS
            classes = Counter(type(reached.obj).__qualname__ for reached in found.values())
            several |= {name for name, number in classes.items() if number > 1}
        self._several = frozenset(several)

    def sort_out(self, changes: Iterable[PartName]) -> list[PartName]:
        """Note as training's what of these changes the threads' code nowhere names. Return those that may be either one's."""
        left = [way for way in changes if way not in self.by_training and way not in self.by_threads]
        if left and self._names is None:
            return left
        if left and not self._names:
            self._names = _names_in(self._threads, [reached.obj for reached in self._objects.values()])
        named = self._names if self._names is not None else frozenset({way.name for way in left})
        unknown = [w for w in left if w.name in named or w.holder in _CONTAINERS or not w.name.isidentifier()]
        self.by_training.update(way for way in left if way not in unknown)
        return unknown

    def mixed(self) -> list[str]:
        """Return what both change, and what cannot be told apart: a thread changes one of several objects of a class."""
        found = (self.by_training & self.by_threads) | {way for way in self.by_threads if way.holder in self._several}
        return [f"{way.holder}.{way.name}" for way in sorted(found)]

    def has(self, obj: Any) -> bool:
        found = self._objects.get(id(obj))
        return found is not None and found.obj is obj

    def is_theirs(self, obj: Any) -> bool:
        """Return whether threads alone change the object, which has no attributes of which this could be told apart."""
        found = self._objects.get(id(obj))
        if found is None or found.obj is not obj:
            return False
        kind = kind_of(type(obj))
        if kind in _WITH_ATTRIBUTES:
            return kind is Kind.LOADER_ITER and not self._is_moved_by_training(found)
        if kind is Kind.FILE:
            return found.way not in self.by_training
        return found.way in self.by_threads and found.way not in self.by_training

    def _is_moved_by_training(self, found: _Reached) -> bool:
        holder = type(found.obj).__qualname__
        return any(way.holder == holder for way in self.by_training)

    def has_theirs(self, obj: Any) -> bool:
        """Return whether some of an object's attributes may be no state of training."""
        return isinstance(obj, threading.Thread) or (bool(self._objects) and self.has(obj))

    def without_theirs(self, obj: Any, content: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return an object's attributes. In place of those that are no state of training stands KEPT.

        These are what threads alone change, and what Python keeps of a thread.
        """
        if not self.has_theirs(obj):
            return content
        holder = type(obj).__qualname__
        theirs = {way.name for way in self.by_threads - self.by_training if way.holder == holder and self.has(obj)}
        if isinstance(obj, threading.Thread):
            theirs |= _OF_EVERY_THREAD
        return {name: KEPT if name in theirs else value for name, value in content.items()}

    def may_change(self, obj: Any, names: Iterable[str]) -> bool:
        """Return whether threads work with the object, and training is not known to be alone in changing these attributes."""
        holder = type(obj).__qualname__
        ways = {PartName(holder, name) for name in names}
        return self.has(obj) and not ways <= self.by_training - self.by_threads

    def contents(self, of: Callable[[Any], bool] = lambda _: True) -> dict[int, Any]:
        """Return what the objects hold now, by id. `of`: which ones are meant."""
        return {key: _content(found.obj) for key, found in self._objects.items() if of(found.obj)}

    def content_of(self, obj: Any) -> dict[int, Any]:
        """Return what one of the objects holds now, as `contents` does; nothing for any other object."""
        return {id(obj): _content(obj)} if self.has(obj) else {}

    def changes(self, before: Mapping[int, Any], after: Mapping[int, Any]) -> set[PartName]:
        """Return what has changed between two looks."""
        found = set[PartName]()
        for key, content in before.items():
            if key in after and key in self._objects:
                found.update(_changed(self._objects[key], content, after[key]))
        return found

    def in_doubt(self, before: Mapping[int, Any], after: Mapping[int, Any]) -> list[str]:
        """Return what has been put to another content though it is not known whether a thread is at work there."""
        changes = self.changes(before, after)
        unknown = {*self.sort_out(changes), *(changes & self.by_training & self.by_threads)}
        return [f"{way.holder}.{way.name}" for way in sorted(unknown)]


def _reached(thread: threading.Thread) -> dict[int, _Reached]:
    """Return what hangs below the variables of a thread's functions, and below what it was started with."""
    found: dict[int, _Reached] = {}
    top = sys._current_frames().get(thread.ident or -1)
    left = deque((value, PartName("threading.Thread", name)) for name, value in _started_with(thread))
    for frame in _frames(top):
        left.extend((v, PartName(frame.f_code.co_name, n)) for n, v in frames.read_locals(frame).items())
    while left and len(found) < _MOST_OBJECTS:
        obj, way = left.popleft()
        if type(obj) in PLAIN or id(obj) in found:
            continue
        below = _below(obj)
        if below is None:
            continue
        holder = type(obj).__qualname__
        parts = [(value, PartName(holder, _name(key))) for key, value in below if type(value) not in PLAIN]
        if parts or type(obj) is not tuple:  # a tuple of plain values does not change
            found[id(obj)] = _Reached(obj, way)
            left.extend(parts)
    return found


def _names_in(threads: Iterable[threading.Thread], objects: Iterable[Any]) -> frozenset[str] | None:
    """Return the names in the code that these threads run, and in what that may call: methods of the objects, its globals.

    None where the code may change attributes by names that it does not have.
    """
    methods: dict[str, list[Any]] = {}
    for cls in {base for obj in objects for base in type(obj).__mro__ if base.__module__ != "builtins"}:
        for name, value in vars(cls).items():
            methods.setdefault(name, []).append(value)
    tops = sys._current_frames()
    left: list[tuple[CodeType, Mapping[str, Any]]] = []
    for thread in threads:
        left += [(frame.f_code, frame.f_globals) for frame in _frames(tops.get(thread.ident or -1))]
        targets = [value for _, value in _started_with(thread)]
        left += [(code, f.__globals__) for f in map(_function_of, targets) if (code := getattr(f, "__code__", None))]
    seen: set[CodeType] = set()
    names: set[str] = set()
    while left:
        code, namespace = left.pop()
        if code in seen:
            continue
        seen.add(code)
        if len(seen) > _MOST_CODE:
            return None
        left += [(inner, namespace) for inner in code.co_consts if isinstance(inner, CodeType)]
        for name in (*code.co_names, *code.co_freevars):
            if name in names:
                continue
            names.add(name)
            for found in map(_function_of, (*methods.get(name, ()), namespace.get(name))):
                if isinstance(found, FunctionType):
                    left.append((found.__code__, found.__globals__))
    return None if names & _WRITES_ANY else frozenset(names)


def _function_of(value: Any) -> Any:
    """Return the function behind a method, a property or a partial function."""
    for name in ("__func__", "fget", "func", "__wrapped__"):
        value = getattr(value, name, value)
    return value


def _started_with(thread: threading.Thread) -> list[tuple[str, Any]]:
    own = vars(thread)
    return [(name, own[name]) for name in ("_target", "_args", "_kwargs") if own.get(name)]


def _frames(top: FrameType | None) -> Iterator[FrameType]:
    while top is not None:
        if not is_ours(top) and str(top.f_globals.get("__name__")) not in _STARTERS:
            yield top
        top = top.f_back


def _name(key: Any) -> str:
    return key if type(key) is str else repr(key) if type(key) in PLAIN else type(key).__qualname__


def _below(obj: Any) -> list[tuple[Any, Any]] | None:
    """Return what an object leads to; None for what is not looked at."""
    kind = kind_of(type(obj))
    if kind in _WITH_ATTRIBUTES:
        return [*attributes(obj).items()]
    if kind in (Kind.LIST, Kind.TUPLE, Kind.DEQUE, Kind.SET):
        return [] if length_of(obj) > _MOST_ITEMS else [*enumerate(_items(obj))]
    if kind is Kind.DICT:
        return [] if length_of(obj) > _MOST_ITEMS else [*dict_items(obj).items()]
    if kind is Kind.GENERATOR:
        frame = obj.gi_frame
        return [] if frame is None or obj.gi_running else [*frames.read_locals(frame).items()]
    if kind in (Kind.ITERATOR, Kind.CYCLE):
        place = plain_iterators.read(obj)
        return [] if place is None else [*place.held.items()]
    if kind is Kind.FUNCTION:
        return [*callables.variables(obj).items()]
    if kind is Kind.THROUGH:
        parts = [(name, getattr(obj, name, None)) for name in ("__self__", "func", "args", "keywords")]
        parts.append(("lines", lines_of(obj)))
        return [(name, value) for name, value in parts if value is not None]
    if kind in _LEAVES:
        return []
    return None


def _items(obj: Any) -> list[Any]:
    return [*tuple_items(obj)] if isinstance(obj, tuple) else [*list_items(obj)] if isinstance(obj, list) else [*obj]


def _content(obj: Any) -> Any:
    kind = kind_of(type(obj))
    if kind in _WITH_ATTRIBUTES:
        return attributes(obj)
    if kind in (Kind.LIST, Kind.DEQUE, Kind.SET):
        return _items(obj)
    if kind is Kind.DICT:
        return [*obj, *dict_items(obj).values()]
    if kind is Kind.PYTHON_RANDOM:
        return obj.getstate()
    if kind is Kind.NUMPY_RANDOM:
        return numpy_random_state(obj)
    if kind is Kind.TORCH_GENERATOR:
        return obj.get_state()
    if kind is Kind.NDARRAY:
        return zlib.crc32(obj.tobytes()) if obj.nbytes <= _LARGE_BYTES and obj.dtype.kind != "O" else None
    if kind is Kind.TENSOR:
        return version_of(obj), obj.shape
    if kind is Kind.BYTEARRAY:
        return zlib.crc32(obj)
    if kind is Kind.GENERATOR:
        frame = obj.gi_frame
        return None if frame is None or obj.gi_running else [frame.f_lasti, *frames.read_locals(frame).values()]
    if kind in (Kind.ITERATOR, Kind.CYCLE):
        place = plain_iterators.read(obj)
        return None if place is None else [*place.numbers, *place.held.values()]
    return None


def _changed(reached: _Reached, before: Any, after: Any) -> Iterator[PartName]:
    if kind_of(type(reached.obj)) in _WITH_ATTRIBUTES:
        holder = type(reached.obj).__qualname__
        for name in before.keys() | after.keys():
            if not (name in before and name in after and _same(before[name], after[name])):
                yield PartName(holder, name)
    elif not _same_content(before, after):
        yield reached.way


def _same(one: Any, other: Any) -> bool:
    if one is other:
        return True
    cls = type(one)
    if cls is not type(other) or cls not in PLAIN:
        return False
    return bool(one == other) or (one != one and other != other)


def _same_content(one: Any, other: Any) -> bool:
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(_same, one, other))
    return alike(one, other)
