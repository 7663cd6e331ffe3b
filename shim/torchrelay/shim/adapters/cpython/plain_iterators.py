"""Read where an iterator of Python's own stands, and put it back.

These are `enumerate`, `zip`, `map`, those of lists and arrays, and those of `itertools`.

Nothing is drawn from it or from what is below it. The iterators' objects are flat: references that the garbage collector tells of,
and plain numbers. A word that is the address of a reference is one, the other words are numbers. Each type is tried on a sample of
its own when it is first met, and left alone (None) where the sample does not go on as it should. Seen on CPython 3.10, 3.11, 3.12
and 3.13.
"""

from __future__ import annotations

import ctypes
import gc
import itertools
import sys
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from torchrelay.protocol.errors import StateMismatchError
from torchrelay.shim.adapters.cpython.generator_frames import decref, incref

_WORD = ctypes.sizeof(ctypes.c_void_p)
_HEAD = object.__basicsize__
_ZIPPED = 0
"""The word of a zip that says how many iterators it draws from."""
_FLAT = sys.implementation.name == "cpython" and _WORD == 8 and getattr(sys, "_is_gil_enabled", lambda: True)()


class IteratorPlace(NamedTuple):
    """Where an iterator stands. `numbers`: one for each word. `held`: the objects, by word."""

    numbers: tuple[int, ...]
    held: dict[int, Any]

    def same(self, other: IteratorPlace) -> bool:
        if self.numbers != other.numbers or self.held.keys() != other.held.keys():
            return False
        return all(value is other.held[word] for word, value in self.held.items())


Maker = Callable[[Any], Any]


class _ByPlace:
    """A sequence like arrays of numpy: Python asks for one element after the other."""

    def __getitem__(self, place: int) -> int:
        if place < 6:
            return place + 1
        raise IndexError


_BY_PLACE = type(iter(_ByPlace()))
_ITERTOOLS: dict[str, Maker] = {
    "chain": lambda source: itertools.chain(source),
    "islice": lambda source: itertools.islice(source, 5),
    "count": lambda source: itertools.count(3),
    "repeat": lambda source: itertools.repeat(7, 5),
    "starmap": lambda source: itertools.starmap(max, source),
    "takewhile": lambda source: itertools.takewhile(bool, source),
    "dropwhile": lambda source: itertools.dropwhile(callable, source),
    "filterfalse": lambda source: itertools.filterfalse(callable, source),
    "accumulate": lambda source: itertools.accumulate(source),
    "compress": lambda source: itertools.compress(source, source),
    "pairwise": lambda source: itertools.pairwise(source),
    "batched": lambda source: getattr(itertools, "batched")(source, 2),  # noqa: B009 - newer than the oldest Python
    "cycle": lambda source: itertools.cycle(source),
}
_MAKERS: dict[type, Maker] = {
    type(iter([])): lambda source: iter([1, 2, 3, 4, 5, 6]),
    type(reversed([])): lambda source: reversed([1, 2, 3, 4, 5, 6]),
    type(iter(())): lambda source: iter((1, 2, 3, 4, 5, 6)),
    type(iter("ä")): lambda source: iter("äöüßäö"),
    type(iter("")): lambda source: iter("abcdef"),
    type(iter(b"")): lambda source: iter(b"abcdef"),
    type(iter(range(0))): lambda source: iter(range(2, 9)),
    type(iter(int, 1)): lambda source: iter(source.__next__, 5),
    _BY_PLACE: lambda source: iter(_ByPlace()),
    enumerate: lambda source: enumerate(source),
    zip: lambda source: zip(source, source),
    map: lambda source: map(str, source),
    filter: lambda source: filter(None, source),
    **{getattr(itertools, name): made for name, made in _ITERTOOLS.items() if hasattr(itertools, name)},
}
TYPES = frozenset(_MAKERS)
_kept_results: dict[type, frozenset[int] | None] = {}
"""For types that work, the words that mean nothing elsewhere: a tuple that is given out again and again, and the address of the
number 1, which `enumerate` borrows and which differs from process to process."""


def _words(obj: Any, kind: Any) -> Any:
    return (kind * ((type(obj).__basicsize__ - _HEAD) // _WORD)).from_address(id(obj) + _HEAD)


def _read(obj: Any, skip: frozenset[int]) -> IteratorPlace:
    values = {id(value): value for value in gc.get_referents(obj)}
    numbers = []
    held = {}
    for place, word in enumerate(_words(obj, ctypes.c_uint64)):
        own = word in values
        if place in skip:
            numbers.append(0)
        elif own:
            held[place] = values[word]
            numbers.append(0)
        else:
            numbers.append(word)
    return IteratorPlace(tuple(numbers), held)


def _write(obj: Any, place: IteratorPlace, skip: frozenset[int]) -> None:
    words = _words(obj, ctypes.c_uint64)
    before = _read(obj, skip).held
    for value in place.held.values():
        incref(id(value))
    for number, word in enumerate(place.numbers):
        if number not in skip:
            words[number] = id(place.held[number]) if number in place.held else word
    for value in before.values():
        decref(id(value))


def read(iterator: Any) -> IteratorPlace | None:
    skip = _skipped(type(iterator))
    if skip is None:
        return None
    place = _read(iterator, skip)
    if type(iterator) is _BY_PLACE and not all(map(_is_asked_without_code, place.held.values())):
        return None  # code of the script's runs in its draws, and may not give the same twice
    return place


def _is_asked_without_code(value: Any) -> bool:
    cls = type(value)
    return cls is _ByPlace or (cls.__module__ == "numpy" and cls.__name__ == "ndarray")


def write(iterator: Any, place: IteratorPlace) -> None:
    """Put an iterator to `place`, which was read from one of the same type.

    Raises StateMismatchError where it has no room for that.
    """
    skip = _skipped(type(iterator))
    assert skip is not None
    if not has_room(iterator, place.numbers):
        raise StateMismatchError(f"a {type(iterator).__name__} draws from another number of iterators here")
    _write(iterator, place, skip)


def has_room(iterator: Any, numbers: Sequence[int]) -> bool:
    """Return whether a place with these numbers can be written to it: the tuple that a zip fills keeps its length."""
    return type(iterator) is not zip or _words(iterator, ctypes.c_uint64)[_ZIPPED] == numbers[_ZIPPED]


def made(cls: type, numbers: Sequence[int] = ()) -> Any:
    """Return an iterator of that type, for a place to be written to it. `numbers`: of that place."""
    if cls is zip and numbers:
        return zip(*(_source() for _ in range(numbers[_ZIPPED])))
    return _MAKERS[cls](_source())


def _source() -> Any:
    return iter([(1, 2), (3, 4), (5, 6), (7, 8), (9, 10), (11, 12), (13, 14), (15, 16), (17, 18), (19, 20)])


def _skipped(cls: type) -> frozenset[int] | None:
    if cls not in _kept_results:
        _kept_results[cls] = _try(cls) if _FLAT and cls in _MAKERS and cls.__itemsize__ == 0 else None
    return _kept_results[cls]


def _try(cls: type) -> frozenset[int] | None:
    fresh = _read(made(cls), frozenset())
    skip = frozenset(n for n, v in fresh.held.items() if type(v) is tuple and v and {*v} == {None})
    skip |= {n for n, word in enumerate(fresh.numbers) if word == id(1)}
    return skip if all(_goes_on(cls, skip, drawn) for drawn in range(3)) else None


def _goes_on(cls: type, skip: frozenset[int], drawn: int) -> bool:
    """Return whether an iterator of the type yields again what it did, and another one that is written alike yields the same."""
    source = _source()
    one = _MAKERS[cls](source)
    other = made(cls)
    for _ in range(drawn):
        next(one)
    place = _read(one, skip)
    below = [source, *(v for v in place.held.values() if type(v) in (type(iter([])), type(iter(()))))]
    places = [_read(iterator, frozenset()) for iterator in below]
    answers: list[list[Any]] = []
    for iterator in (one, one, other):
        if answers:
            _write(iterator, place, skip)
            for found, then in zip(below, places):
                _write(found, then, frozenset())
        answers.append([next(iterator, None) for _ in range(3)])
    return answers[0] == answers[1] == answers[2] and answers[0][0] is not None
