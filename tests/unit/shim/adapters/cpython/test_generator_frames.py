"""Generators put to where they stood, on the CPython that runs the tests; seen on 3.10, 3.11, 3.12 and 3.13."""

from __future__ import annotations

import gc
import sys
import weakref
from collections.abc import Generator
from typing import Any

import pytest

from torchrelay.shim.adapters.cpython import generator_frames as frames
from torchrelay.shim.adapters.cpython import plain_iterators

OVER_CAN_GO_ON = sys.version_info >= (3, 11)


def numbers(count: int, log: list[Any]) -> Generator[Any, Any, None]:
    for first in range(count):
        try:
            for second in (10, 20, 30):
                sent = yield first, second
                log.append(sent)
            yield from (letter for letter in "xy")
        finally:
            log.append(first)


ALL = [(n, m) if isinstance(m, int) else m for n in range(2) for m in (10, 20, 30, "x", "y")]


def copy(iterator: Any) -> Any:
    """A second one of the same place, with whatever it draws from."""
    if isinstance(iterator, frames.Generator):
        stand = frames.read(iterator)
        assert stand is not None
        made = frames.made(iterator.gi_code, globals(), iterator.gi_code.co_name, ())
        names = len(frames.names(iterator.gi_code))
        frames.write(made, stand._replace(slots=stand.slots[:names] + tuple(map(copy, stand.slots[names:]))))
        return made
    if type(iterator) in plain_iterators.TYPES:
        place = plain_iterators.read(iterator)
        assert place is not None
        made = plain_iterators.made(type(iterator))
        plain_iterators.write(made, place)
        return made
    return iterator


def test_this_python_is_known() -> None:
    assert frames.WORKS
    assert all(plain_iterators.read(plain_iterators.made(cls)) is not None for cls in plain_iterators.TYPES)


@pytest.mark.parametrize("drawn", range(10))
def test_a_copy_goes_on_as_the_first_one_does(drawn: int) -> None:
    log: list[Any] = []
    first = numbers(2, log)
    seen = [next(first) for _ in range(drawn)]
    second = copy(first)
    log.clear()
    rest, said = list(first), log[:]
    log.clear()
    assert (list(second), log) == (rest, said)
    assert seen + rest == ALL


def test_a_generator_goes_back_in_place_as_often_as_wanted_and_leaks_nothing() -> None:
    class Item:
        pass

    made: weakref.WeakSet[Item] = weakref.WeakSet()

    def items() -> Any:
        while True:
            item = Item()
            made.add(item)
            yield item

    generator = items()
    next(generator)
    stand = frames.read(generator)
    assert stand is not None
    for _ in range(100):
        next(generator)
        frames.write(generator, stand)
    del generator, stand
    gc.collect()
    assert not made


def test_exceptions_and_values_that_are_sent_arrive_where_it_stands_now() -> None:
    log: list[Any] = []
    generator = numbers(3, log)
    next(generator)
    other = copy(generator)
    other.send("hello")
    with pytest.raises(KeyError):
        other.throw(KeyError("thrown"))
    assert log == ["hello", 0]
    assert next(generator) == (0, 20)


@pytest.mark.skipif(not OVER_CAN_GO_ON, reason="before 3.11 the frame of a generator that is over is gone")
def test_one_that_is_over_goes_on_from_where_it_stood() -> None:
    generator = numbers(2, [])
    for _ in range(6):
        next(generator)
    stand = frames.read(generator)
    assert stand is not None
    outer, inner = (slot for slot in stand.slots if type(slot) in plain_iterators.TYPES)
    places = [(each, plain_iterators.read(each)) for each in (outer, inner)]
    expected = list(generator)
    assert frames.is_over(generator)
    for each, place in places:
        assert place is not None
        plain_iterators.write(each, place)
    frames.wake(generator, frames.made(generator.gi_code, globals(), "numbers", ()))
    frames.write(generator, stand)
    assert list(generator) == expected != []


def handles(seen: list[Any]) -> Any:
    for place in range(3):
        try:
            yield place
            raise KeyError(place)
        except KeyError as error:
            seen.append(sys.exc_info()[1])
            yield error.args
            seen.append(sys.exc_info()[1])
        seen.append(sys.exc_info()[1])


@pytest.mark.skipif(OVER_CAN_GO_ON, reason="told in one word from 3.11 on")
def test_one_that_is_suspended_where_it_handles_an_error_is_not_read() -> None:
    generator = handles([])
    next(generator)
    next(generator)
    assert frames.read(generator) is None


@pytest.mark.skipif(not OVER_CAN_GO_ON, reason="three words and blocks of the frame's, before 3.11")
@pytest.mark.parametrize("then", range(1, 6))
@pytest.mark.parametrize("now", range(1, 6))
def test_one_that_handles_an_error_goes_back_to_where_it_did_or_did_not(then: int, now: int) -> None:
    seen: list[Any] = []
    generator = handles(seen)
    for _ in range(then):
        next(generator)
    stand = frames.read(generator)
    assert stand is not None
    assert isinstance(stand.error, KeyError) == (then % 2 == 0)
    (loop,) = (slot for slot in stand.slots if type(slot) in plain_iterators.TYPES)
    place = plain_iterators.read(loop)
    assert place is not None
    expected = [next(generator) for _ in range(now)] if then + now <= 6 else list(generator)
    told = [*map(repr, seen)]
    for _ in range(20):
        if frames.is_over(generator):
            frames.wake(generator, frames.made(generator.gi_code, globals(), "handles", ()))
        plain_iterators.write(loop, place)
        frames.write(generator, stand)
        del seen[(then - 1) // 2 * 3 + (then % 2 == 0) :]
        again = [next(generator) for _ in range(now)] if then + now <= 6 else list(generator)
        assert again == expected
        assert [*map(repr, seen)] == told
    assert sys.exc_info() == (None, None, None)


@pytest.mark.skipif(not OVER_CAN_GO_ON, reason="three words and blocks of the frame's, before 3.11")
def test_what_it_handles_is_held_once_and_let_go() -> None:
    class Told(KeyError):
        pass

    def one() -> Any:
        try:
            raise Told
        except Told:
            yield 1
        yield 2

    generator = one()
    next(generator)
    stand = frames.read(generator)
    assert stand is not None
    count = weakref.ref(stand.error) if stand.error is not None else None
    for _ in range(100):
        assert next(generator) == 2
        frames.write(generator, stand)
    del stand, generator
    gc.collect()
    assert count is not None
    assert count() is None
