"""A generator stands still as long as it was not asked, and nobody has changed a variable that it shares."""

from __future__ import annotations

from collections.abc import Iterator
from types import CellType, GeneratorType
from typing import Any

import pytest

from torchrelay.shim.adapters.cpython import generator_frames
from torchrelay.shim.capture.iteration.generator_position import GeneratorStand, standing, stands_still

pytestmark = pytest.mark.skipif(not generator_frames.WORKS, reason="generators' frames are not read on this Python")


def stand_of(generator: GeneratorType[Any, Any, Any]) -> GeneratorStand:
    found = standing(generator)
    assert found is not None
    return found


def numbers() -> Iterator[int]:
    number = 1000
    while True:
        number += 1
        yield number


def test_one_that_nobody_has_asked_stands_still() -> None:
    generator = numbers()
    next(generator)
    assert stands_still(generator, stand_of(generator))


def test_one_that_was_asked_does_not() -> None:
    generator = numbers()
    next(generator)
    then = stand_of(generator)
    next(generator)
    assert not stands_still(generator, then)


def test_one_that_has_begun_or_is_over_does_not() -> None:
    generator = numbers()
    then = stand_of(generator)
    next(generator)
    assert not stands_still(generator, then)
    then = stand_of(generator)
    generator.close()
    assert not stands_still(generator, then)


def test_one_whose_shared_variable_is_another_one_does_not() -> None:
    factor = [1]

    def multiples() -> Iterator[list[int]]:
        while True:
            yield factor

    generator = multiples()
    next(generator)
    then = stand_of(generator)
    assert stands_still(generator, then)
    factor = [2]
    assert not stands_still(generator, then)


def test_a_cell_in_a_variable_of_its_own_is_taken_for_a_change() -> None:
    shared = [1]

    def around() -> Iterator[object]:
        own = CellType(5)
        while True:
            yield own, shared

    generator = around()
    next(generator)
    assert not stands_still(generator, stand_of(generator)), "a look that takes longer, and no wrong answer"
