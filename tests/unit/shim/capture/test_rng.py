from __future__ import annotations

import pickle
import random

import numpy
import pytest
import torch

from torchrelay.shim.capture import rng


def draw() -> tuple[float, float, float]:
    return random.random(), float(numpy.random.rand()), torch.rand(1).item()


def test_python_numpy_and_torch_draw_the_same_again_also_in_another_process() -> None:
    numpy.random.seed(0)
    state = rng.capture()
    first = draw()
    draw()
    rng.restore(pickle.loads(pickle.dumps(state)))
    assert draw() == first


def test_a_half_used_pair_of_normal_numbers_is_state_too() -> None:
    random.gauss(0, 1)
    numpy.random.randn()
    torch.randn(1)
    state = rng.capture()
    first = random.gauss(0, 1), float(numpy.random.randn()), torch.randn(1).item()
    rng.restore(state)
    assert (random.gauss(0, 1), float(numpy.random.randn()), torch.randn(1).item()) == first


def test_capturing_draws_nothing() -> None:
    torch.manual_seed(1)
    expected = torch.rand(1).item()
    torch.manual_seed(1)
    rng.capture()
    assert torch.rand(1).item() == expected


@pytest.mark.parametrize("size", [0, 1, 9])
def test_bytes_of_a_tensor_come_back(size: int) -> None:
    tensor = torch.arange(size, dtype=torch.uint8)
    assert torch.equal(rng.byte_tensor(rng.tensor_bytes(tensor)), tensor)
    strided = torch.arange(2 * size, dtype=torch.uint8)[::2]
    assert rng.tensor_bytes(strided) == bytes(range(0, 2 * size, 2))
