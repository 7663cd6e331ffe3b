"""Where Python's own iterators stand is told in numbers that mean the same in every process."""

from __future__ import annotations

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
