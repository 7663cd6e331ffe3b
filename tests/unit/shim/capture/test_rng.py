from __future__ import annotations

import pickle
import random

import numpy
import pytest
import torch

from torchrelay.protocol.errors import StateMismatchError
from torchrelay.shim.adapters import used_devices
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


class Devices:
    """Plays four devices, of which this process has a context on some. A state is one number."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, contexts: set[int]) -> None:
        self.contexts, self.states = contexts, [10, 11, 12, 13]
        monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
        monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
        monkeypatch.setattr(torch.cuda, "device_count", lambda: 4)
        monkeypatch.setattr(torch.cuda, "default_generators", tuple(range(4)))
        monkeypatch.setattr(used_devices, "_has_context", self.contexts.__contains__)
        monkeypatch.setattr(
            torch.cuda, "get_rng_state", lambda device: torch.tensor([self.states[device]], dtype=torch.uint8)
        )
        monkeypatch.setattr(torch.cuda, "set_rng_state", self._set)
        monkeypatch.setattr(rng, "_used", used_devices.UsedDevices())

    def _set(self, state: torch.Tensor, device: int) -> None:
        self.states[device] = int(state.item())


def test_the_generator_of_each_device_in_use_is_captured_and_put_back(monkeypatch: pytest.MonkeyPatch) -> None:
    devices = Devices(monkeypatch, {0, 2})
    state = rng.capture()
    assert state.cuda == ((0, bytes([10])), (2, bytes([12])))
    devices.states[:] = [1, 2, 3, 4]
    rng.restore(state)
    assert devices.states == [10, 2, 12, 4]


def test_a_device_that_the_lost_rank_used_counts_as_used_in_its_successor_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """Which may come to it later."""
    Devices(monkeypatch, {0, 2})
    of_the_lost = rng.capture()
    successor = Devices(monkeypatch, set())
    assert [device for device, _ in rng.capture().cuda] == [0]
    rng.restore(of_the_lost)
    assert rng.same(rng.capture(), of_the_lost)
    successor.states[2] += 1
    assert not rng.same(rng.capture(), of_the_lost)


def test_a_device_that_only_one_of_two_processes_uses_is_no_difference(monkeypatch: pytest.MonkeyPatch) -> None:
    devices = Devices(monkeypatch, {0})
    before = rng.capture()
    devices.contexts.add(3)
    after = rng.capture()
    assert (len(before.cuda), len(after.cuda)) == (1, 2)
    assert rng.same(before, after)
    devices.states[0] += 1
    assert not rng.same(before, rng.capture())


def test_what_was_drawn_on_a_device_that_is_not_there_cannot_go_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """Other numbers would be drawn in silence."""
    Devices(monkeypatch, {0})
    state = rng.capture()._replace(cuda=((0, bytes([7])), (9, bytes([8]))))
    with pytest.raises(StateMismatchError, match="device 9"):
        rng.restore(state)


def test_a_torch_that_does_not_tell_of_contexts_has_the_current_device(monkeypatch: pytest.MonkeyPatch) -> None:
    Devices(monkeypatch, {0, 1, 2})
    monkeypatch.setattr(used_devices, "_has_context", None)
    assert [device for device, _ in rng.capture().cuda] == [0]
