"""Where Python's own iterators stand is told in numbers that mean the same in every process."""

from __future__ import annotations

import numpy
import pytest

from torchrelay.protocol.errors import StateMismatchError
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


@pytest.mark.parametrize("sources", range(7))
def test_a_zip_goes_on_in_another_one_of_as_many_sources(sources: int) -> None:
    zipped = zip(*([10 * n, 10 * n + 1, 10 * n + 2] for n in range(sources)))
    next(zipped, None)
    place = plain_iterators.read(zipped)
    assert place is not None
    other = plain_iterators.made(zip, place.numbers)
    plain_iterators.write(other, place)
    assert [*other] == [tuple(10 * n + left for n in range(sources)) for left in (1, 2) if sources]


def test_a_zip_of_fewer_sources_is_not_written_to_beyond_its_room() -> None:
    place = plain_iterators.read(zip("abc", "def", "ghi"))
    assert place is not None
    other = zip("abc", "def")
    assert not plain_iterators.has_room(other, place.numbers)
    with pytest.raises(StateMismatchError, match="a zip draws from another number of iterators here"):
        plain_iterators.write(other, place)
    assert [*other] == [("a", "d"), ("b", "e"), ("c", "f")]


def test_a_class_that_an_iterator_calls_is_an_object_as_others() -> None:
    """Its address means nothing in another process."""
    place = plain_iterators.read(map(int, ["1", "2"]))
    assert place is not None
    assert int in place.held.values()
    assert id(int) not in place.numbers
