from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import numpy
import pytest
import torch

from torchrelay.shim.adapters.raw_memory.generators import NumpyMarker, PythonMarker
from torchrelay.shim.adapters.raw_memory.torch_generator import TorchGenerator, as_told
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

TORCH_USES: list[Callable[[], Any]] = [
    lambda: torch.rand(1),
    lambda: torch.randn(1),
    lambda: torch.randn(1),
    lambda: torch.randn(1, dtype=torch.float64),
    lambda: torch.randn(1, dtype=torch.float64),
    lambda: torch.randn(64),
    lambda: torch.manual_seed(7),
    lambda: torch.randperm(5),
    lambda: torch.nn.functional.dropout(torch.ones(4)),
    lambda: torch.empty(3).normal_(),
    lambda: torch.set_rng_state(torch.Generator().manual_seed(9).get_state()),
]


def test_python_generators_memory_is_where_we_look() -> None:
    assert PythonMarker().works


def test_numpy_generators_memory_is_where_we_look() -> None:
    assert NumpyMarker().read() is not None


def test_torch_generators_memory_is_where_we_look() -> None:
    assert TorchGenerator().in_memory is not None


@pytest.mark.parametrize("in_memory", [True, False])
def test_torch_goes_on_from_what_was_read(in_memory: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if not in_memory:
        monkeypatch.setattr("torchrelay.shim.adapters.raw_memory.torch_generator._HEADER_BYTES", 24)
    generator = TorchGenerator()
    assert (generator.in_memory is not None) is in_memory
    for use in TORCH_USES:
        use()
        state, told = generator.read(), torch.get_rng_state()
        assert torch.equal(rng.byte_tensor(as_told(state)), told)
        drawn = torch.randn(3), torch.randn(1, dtype=torch.float64)
        torch.set_rng_state(rng.byte_tensor(as_told(state)))
        assert torch.equal(torch.get_rng_state(), told)
        assert torch.equal(torch.randn(3), drawn[0])
        assert torch.equal(torch.randn(1, dtype=torch.float64), drawn[1])


MARKERS: list[tuple[type[PythonMarker | NumpyMarker | TorchGenerator], list[Callable[[], Any]]]] = [
    (PythonMarker, PYTHON_USES),
    (NumpyMarker, NUMPY_USES),
    (TorchGenerator, TORCH_USES),
]


@pytest.mark.parametrize(("kind", "uses"), MARKERS, ids=["python", "numpy", "torch"])
def test_each_use_of_a_generator_is_noticed(
    kind: type[PythonMarker | NumpyMarker | TorchGenerator], uses: list[Callable[[], Any]]
) -> None:
    marker = kind()
    for use in uses:
        before = marker.read()
        assert marker.read() == before
        use()
        assert marker.read() != before


@pytest.mark.parametrize("drawn", [1, 2, 311, 312, 623, 624, 625, 1248])
def test_a_whole_round_of_the_generator_is_noticed(drawn: int) -> None:
    """After as many numbers as it has words the counter is where it was."""
    for kind, draw in (
        (PythonMarker, lambda: random.getrandbits(32)),
        (NumpyMarker, lambda: numpy.random.randint(0, 1 << 32, dtype=numpy.uint32)),
        (TorchGenerator, lambda: torch.randint(0, 1 << 24, (1,))),
    ):
        marker = kind()
        before = marker.read()
        for _ in range(drawn):
            draw()
        assert marker.read() != before


def test_states_are_shared_until_the_generator_is_used() -> None:
    first = rng.capture()
    again = rng.capture()
    assert again.python is first.python
    assert again.numpy is first.numpy
    assert again.torch_cpu is first.torch_cpu
    random.random()
    numpy.random.rand()
    torch.rand(1)
    later = rng.capture()
    assert later.torch_cpu != first.torch_cpu
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
    monkeypatch.setattr("torchrelay.shim.adapters.raw_memory.generators._HEADER_BYTES", 24)
    assert PythonMarker().read() is None
