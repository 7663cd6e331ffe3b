"""Where Python's own iterators stand is told in numbers that mean the same in every process."""

from __future__ import annotations

import numpy

from torchrelay.shim.adapters.cpython import plain_iterators


def test_an_address_that_enumerate_borrows_is_no_number_of_its_place() -> None:
    counted = enumerate("abc", 5)
    next(counted)
    place = plain_iterators.read(counted)
    assert place is not None
    assert place.numbers[0] == 6
    assert max(place.numbers) < 1 << 32, "an address"
    plain_iterators.write(counted, place)
    assert [*counted] == [(6, "b"), (7, "c")]


def test_an_iterator_of_an_array_goes_on_where_it_stood_and_is_over_where_it_was() -> None:
    array = numpy.arange(3)
    iterator, other = iter(array), plain_iterators.made(type(iter(array)))
    next(iterator)
    place = plain_iterators.read(iterator)
    assert place is not None
    plain_iterators.write(other, place)
    assert [*iterator] == [*other] == [1, 2]
    over = plain_iterators.read(iterator)
    assert over is not None
    plain_iterators.write(other, over)
    assert [*other] == []
    plain_iterators.write(iterator, place)
    assert [*iterator] == [1, 2]


def test_one_that_asks_an_object_of_the_scripts_is_left_alone() -> None:
    class Samples:
        def __getitem__(self, place: int) -> int:
            return place

    assert plain_iterators.read(iter(Samples())) is None
