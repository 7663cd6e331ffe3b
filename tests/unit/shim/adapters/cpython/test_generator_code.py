"""Generators that pass on what they draw are told from those that look at it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from torchrelay.shim.adapters.cpython.generator_code import only_passes_on


def passing(source: Any) -> Iterator[Any]:
    for item in source:  # noqa: UP028 - as scripts write it
        yield item


def cycling(source: Any) -> Iterator[Any]:
    epoch = 0
    while True:
        source.sampler.set_epoch(epoch)
        for batch in source:  # noqa: UP028 - as scripts write it
            yield batch
        epoch += 1


def enclosed(source: Any) -> Callable[[], Iterator[Any]]:
    def inner() -> Iterator[Any]:
        for item in source:  # noqa: UP028 - as scripts write it
            yield item

    return inner


def unpacking(source: Any) -> Iterator[Any]:
    for x, _ in source:
        yield x


def changing(source: Any) -> Iterator[Any]:
    for item in source:
        yield item * 2


def looking(source: Any) -> Iterator[Any]:
    for item in source:
        if item:
            yield item


def of_another(source: Any) -> Iterator[Any]:
    other = None
    for item in source:  # noqa: B007 - the code under test
        yield other


def passing_and_looking(source: Any) -> Iterator[Any]:
    for item in source:
        yield item
    for item in source:
        yield len(item)


def without_a_loop(source: Any) -> Iterator[Any]:
    yield next(source)


@pytest.mark.parametrize("function", [passing, cycling, enclosed(())])
def test_those_that_pass_their_items_on(function: Callable[..., Any]) -> None:
    assert only_passes_on(function.__code__)


@pytest.mark.parametrize("function", [unpacking, changing, looking, of_another, passing_and_looking, without_a_loop])
def test_those_that_may_look_at_them(function: Callable[..., Any]) -> None:
    assert not only_passes_on(function.__code__)
