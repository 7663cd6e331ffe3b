from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import numpy
import pytest

from torchrelay.shim.adapters.generators import NumpyMarker, PythonMarker
from torchrelay.shim.capture import rng

PYTHON_USES: list[Callable[[], Any]] = [
    random.random,
    lambda: random.gauss(0, 1),
    lambda: random.gauss(0, 1),
    lambda: random.seed(7),
    lambda: random.shuffle([1, 2, 3]),
    lambda: random.setstate(random.Random(9).getstate()),
]
NUMPY_USES: list[Callable[[], Any]] = [
    numpy.random.rand,
    numpy.random.randn,
    numpy.random.randn,
    lambda: numpy.random.seed(7),
    lambda: numpy.random.permutation(5),
    lambda: numpy.random.set_state(numpy.random.RandomState(9).get_state()),
    lambda: numpy.random.binomial(10, 0.3),
]


def test_python_generators_memory_is_where_we_look() -> None:
    assert PythonMarker().works


def test_numpy_generators_memory_is_where_we_look() -> None:
    assert NumpyMarker().read() is not None


@pytest.mark.parametrize("uses", [PYTHON_USES, NUMPY_USES], ids=["python", "numpy"])
def test_each_use_of_a_generator_is_noticed(uses: list[Callable[[], Any]]) -> None:
    marker = PythonMarker() if uses is PYTHON_USES else NumpyMarker()
    for use in uses:
        before = marker.read()
        assert marker.read() == before
        use()
        assert marker.read() != before


def test_states_are_shared_until_the_generator_is_used() -> None:
    first = rng.capture()
    again = rng.capture()
    assert again.python is first.python
    assert again.numpy is first.numpy
    random.random()
    numpy.random.rand()
    later = rng.capture()
    assert later.python != first.python
    assert later.numpy != first.numpy


def test_a_replaced_bit_generator_of_another_kind_is_asked_itself() -> None:
    kept = numpy.random.get_bit_generator()
    marker = NumpyMarker()
    try:
        numpy.random.set_bit_generator(numpy.random.PCG64(3))
        assert marker.read() is None
    finally:
        numpy.random.set_bit_generator(kept)
    assert marker.read() is not None


def test_a_generator_whose_memory_says_something_else_is_asked_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torchrelay.shim.adapters.generators._HEADER_BYTES", 24)
    assert PythonMarker().read() is None
