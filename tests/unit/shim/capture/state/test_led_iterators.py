"""An iterator that cannot be put to where it stood is led there by asking it, and must yield the same items."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import Any

import pytest
import torch

from torchrelay.protocol.errors import StateMismatchError
from torchrelay.shim.capture.iteration import generator_position
from torchrelay.shim.capture.state.led_iterators import LedIterators
from torchrelay.shim.capture.values.item_mark import TakenItems
from torchrelay.shim.data.iterator_replay import IteratorReplay

START = TakenItems(0, b"")


def numbers(first: int = 0) -> Iterator[int]:
    for number in range(first, first + 5):  # noqa: UP028 - its variable shows where it stands
        yield number


def asked(led: LedIterators, times: int) -> Any:
    """Return a generator that the script has asked through the record of draws."""
    draws = IteratorReplay()
    draws.led = led
    source = numbers()
    assert led.way_to(source) is None, "nobody has asked it yet"
    for _ in range(times):
        draws.draw(source, next)
    led.at_boundary()
    return source


def test_what_the_script_asks_is_counted() -> None:
    led = LedIterators()
    source = asked(led, 2)
    known = led.way_to(source)
    assert known is not None
    assert known.place == START.after(0).after(1)
    assert not led.at_boundary()


def test_a_new_process_asks_as_often() -> None:
    here = numbers()
    LedIterators().lead(here, START.after(0).after(1))
    assert next(here) == 2


def test_one_that_is_there_already_is_not_asked() -> None:
    led = LedIterators()
    source = asked(led, 2)
    led.lead(source, START.after(0).after(1))
    assert next(source) == 2


@pytest.mark.parametrize("source", [numbers(1), iter([0])])
def test_other_items_and_fewer_ones_are_refused(source: Iterator[int]) -> None:
    with pytest.raises(StateMismatchError, match="of set-up yields other items here"):
        LedIterators().lead(source, START.after(0).after(1))


def test_one_of_training_is_not_led() -> None:
    led = LedIterators()
    led.in_set_up = False
    assert led.way_to(asked(led, 2)) is None


def test_one_that_something_else_asks_as_well_is_not_led() -> None:
    led = LedIterators()
    source = asked(led, 2)
    assert led.way_to(source) is not None
    [*islice(source, 1)]
    assert led.way_to(source) is not None, "until the next boundary"
    assert led.at_boundary()
    assert led.way_to(source) is None


def test_one_that_does_not_show_where_it_stands_is_not_led() -> None:
    def lines(opened: Iterator[int]) -> Iterator[int]:
        yield from opened

    led = LedIterators()
    draws = IteratorReplay()
    draws.led = led
    source = lines(iter([1, 2, 3]))
    led.meet(source)
    draws.draw(source, next)
    draws.draw(source, next)
    led.at_boundary()
    assert led.way_to(source) is None


def test_a_step_that_is_done_again_counts_its_items_once() -> None:
    led = LedIterators()
    draws = IteratorReplay()
    draws.led = led
    source = numbers()
    led.meet(source)
    draws.draw(source, next)
    draws.at_boundary()
    led.at_boundary()
    known = led.way_to(source)
    assert known is not None
    before = known.place
    assert draws.draw(source, next) == 1
    after = known.place
    draws.rewind()
    known.put(before)
    assert draws.draw(source, next) == 1
    assert known.place == after == before.after(1)


def test_one_that_draws_by_chance_is_not_led() -> None:
    led = LedIterators()
    draws = IteratorReplay()
    draws.led = led
    source = (float(torch.rand(1)) for _ in range(5))
    led.meet(source)
    draws.draw(source, next)
    led.at_boundary()
    assert led.way_to(source) is None


def drawing(source: Iterator[int]) -> Iterator[int]:
    for number in source:  # noqa: UP028 - its variable shows where it stands
        yield number


def test_one_that_draws_from_what_cannot_be_captured_is_led_with_what_it_draws_from() -> None:
    source = numbers()
    led = LedIterators(lambda iterator: [source] if iterator is generator else [])
    generator = drawing(source)
    draws = IteratorReplay()
    draws.led = led
    led.meet(generator)
    draws.draw(generator, next)
    led.at_boundary()
    assert not led.is_wanted(generator)
    led.want([source])
    assert led.at_boundary(), "a walk has to look anew"
    assert led.is_wanted(generator)
    assert led.is_below(source)
    assert not led.at_boundary()


def test_one_that_can_be_put_to_where_it_stands_is_counted_for_some_steps() -> None:
    led = LedIterators()
    source = numbers()
    led.meet(source)
    led.forget(source)
    assert led.known(source) is not None
    for _ in range(17):
        led.at_boundary()
    led.forget(source)
    assert led.known(source) is None


def test_one_that_binds_a_variable_outside_of_it_is_not_led() -> None:
    count = 0

    def counting() -> Iterator[int]:
        nonlocal count
        for number in range(5):
            count += 1
            yield number

    led = LedIterators()
    draws = IteratorReplay()
    draws.led = led
    source = counting()
    led.meet(source)
    draws.draw(source, next)
    led.at_boundary()
    assert led.way_to(source) is None


def passed_on(source: Iterator[int]) -> Iterator[int]:
    for number in source:  # noqa: UP028 - its variable shows where it stands
        yield number


@pytest.mark.parametrize("other", ["another generator", "the script"])
def test_one_that_shares_what_it_draws_from_is_not_led(other: str) -> None:
    led = LedIterators(generator_position.sources_below)
    draws = IteratorReplay()
    draws.led = led
    source = numbers()
    first = passed_on(source)
    second = passed_on(source) if other == "another generator" else source
    for iterator in (source, first, second):
        led.meet(iterator)
    for iterator in (first, second):
        led.want_itself(iterator)
    draws.draw(first, next)
    led.at_boundary()
    if other == "the script":
        assert led.way_to(first) is not None
        draws.draw(second, next)
        led.at_boundary()
    assert led.way_to(first) is None


def test_one_within_another_one_shares_nothing() -> None:
    led = LedIterators(generator_position.sources_below)
    draws = IteratorReplay()
    draws.led = led
    inner = numbers()
    outer = passed_on(inner)
    for iterator in (inner, outer):
        led.meet(iterator)
        led.want_itself(iterator)
    draws.draw(outer, next)
    led.at_boundary()
    assert led.way_to(outer) is not None
