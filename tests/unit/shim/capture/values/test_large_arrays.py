"""Which large arrays are carried, and when two of them are the same."""

from __future__ import annotations

import numpy
import pytest
import torch

from torchrelay.shim.capture.values import large_arrays
from torchrelay.shim.capture.values.large_arrays import LargeArrays


def large() -> numpy.ndarray:
    return numpy.zeros(20_000)


def settled() -> LargeArrays:
    arrays = LargeArrays()
    arrays.settle()
    return arrays


def test_what_set_up_has_made_is_not_carried_and_what_training_makes_is() -> None:
    arrays, data = LargeArrays(), large()
    assert not arrays.is_carried(data)
    arrays.settle()
    made = large()
    assert arrays.is_carried(made)
    assert arrays.is_carried(made)
    assert not arrays.is_carried(data)


def test_what_a_journal_had_is_carried_on() -> None:
    arrays, carried, data = LargeArrays(), large(), large()
    arrays.keep(carried)
    assert [arrays.is_carried(array) for array in (carried, data)] == [True, False]
    arrays.settle()
    assert [arrays.is_carried(array) for array in (carried, data)] == [True, False]


def test_an_array_in_the_place_of_one_that_is_gone_is_another_one() -> None:
    arrays, data = LargeArrays(), large()
    assert not arrays.is_carried(data)
    arrays.settle()
    arrays._of_set_up[id(other := large())] = arrays._of_set_up[id(data)]
    assert arrays.is_carried(other)


def test_no_more_than_some_MiB_are_carried(monkeypatch: pytest.MonkeyPatch) -> None:
    arrays, made = settled(), large()
    monkeypatch.setattr(large_arrays, "_ALL_BYTES", made.nbytes)
    assert arrays.is_carried(made)
    more = large()
    assert not arrays.is_carried(more)
    del made
    assert arrays.is_carried(more)
    monkeypatch.setattr(large_arrays, "MOST_BYTES", more.nbytes - 1)
    del more
    assert not arrays.is_carried(large())


def test_memory_that_is_not_the_arrays_own_is_not_carried() -> None:
    whole, mapped = large(), torch.zeros(20_000).numpy()
    fixed = large()
    fixed.flags.writeable = False
    foreign = [
        whole[:19_000],
        mapped,
        fixed,
        numpy.frombuffer(bytearray(1 << 17)),
        large().view(numpy.matrix),
        large()[::-1],
    ]
    assert not any(settled().is_carried(array) for array in foreign)


def test_of_two_arrays_with_the_same_memory_one_is_carried() -> None:
    arrays, whole = settled(), large()
    assert arrays.is_carried(whole)
    assert not arrays.is_carried(whole.reshape(100, 200))
    assert settled().is_carried(whole.reshape(100, 200))
    arrays, data = LargeArrays(), large()
    assert not arrays.is_carried(data)
    arrays.settle()
    assert not arrays.is_carried(data.reshape(100, 200))


def test_arrays_are_compared_bit_by_bit() -> None:
    array = numpy.zeros((3, 4))
    assert large_arrays.is_same(array, array.copy("K"))
    changed = array.copy()
    changed[2, 3] = -0.0
    assert not large_arrays.is_same(array, changed)
    assert not large_arrays.is_same(array, numpy.zeros((4, 3)))
    assert not large_arrays.is_same(array, numpy.zeros((3, 4), "i8"))
    assert not large_arrays.is_same(array, numpy.asfortranarray(array))
    assert large_arrays.is_same(numpy.asfortranarray(array), numpy.asfortranarray(array))


def test_what_was_read_from_a_file_is_carried_unless_that_holds_more() -> None:
    arrays, read = settled(), bytes(1 << 20)
    first = numpy.frombuffer(read, numpy.uint16)
    assert arrays.is_carried(first)
    assert arrays.is_carried(numpy.frombuffer(bytes(1 << 20), numpy.uint16, offset=1024))
    assert not arrays.is_carried(numpy.frombuffer(read, numpy.uint16)), "the same bytes"
    assert not arrays.is_carried(numpy.frombuffer(bytes(1 << 20), numpy.uint16, offset=1 << 19))


def test_what_is_of_set_up_is_known() -> None:
    arrays, data = LargeArrays(), large()
    assert not arrays.is_carried(data)
    arrays.settle()
    assert [arrays.is_of_set_up(array) for array in (data, large())] == [True, False]
