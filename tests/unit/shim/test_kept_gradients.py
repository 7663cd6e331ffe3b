"""Gradients that one step adds to those of the step before are found, and nothing that zeroes them is taken for that."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from torchrelay.protocol.errors import UnsupportedError
from torchrelay.shim.kept_gradients import KeptGradients


class Training:
    def __init__(self, **optimizers: torch.nn.Module) -> None:
        self.models = optimizers
        self.optimizers = {name: torch.optim.SGD(model.parameters(), lr=0.1) for name, model in optimizers.items()}
        self.kept = KeptGradients()
        self.boundary = -1

    def begin(self, boundary: int) -> None:
        self.boundary = boundary
        state = SimpleNamespace(optimizers=[*self.optimizers.items()])
        commit: Any = SimpleNamespace(boundary=boundary, state=state)
        self.kept.at_boundary(commit)

    def backward(self, name: str) -> None:
        self.kept.before_backward()
        self.models[name](torch.ones(2, 3)).sum().backward()


def plain() -> torch.nn.Module:
    return torch.nn.Linear(3, 1)


def train(step: Callable[[Training], None], steps: int = 3, first: int = 0) -> None:
    training = Training(model=plain())
    training.models["model"](torch.ones(2, 3)).sum().backward()
    for boundary in range(first, first + steps):
        training.begin(boundary)
        step(training)


def test_gradients_that_are_added_to_are_found_before_the_optimizer_writes() -> None:
    def step(training: Training) -> None:
        training.backward("model")
        training.kept.check()

    with pytest.raises(UnsupportedError, match=r"gradients are kept .*model.param_groups\[0\]\['params'\]\[0\]"):
        train(step, steps=1)


def zero_grad(training: Training) -> None:
    training.optimizers["model"].zero_grad()


def zero_in_place(training: Training) -> None:
    training.optimizers["model"].zero_grad(set_to_none=False)


def zero_by_hand(training: Training) -> None:
    for parameter in training.models["model"].parameters():
        if parameter.grad is not None:
            parameter.grad.zero_()


@pytest.mark.parametrize("zero", [zero_grad, zero_in_place, zero_by_hand])
@pytest.mark.parametrize("at_the_end", [True, False])
def test_whatever_zeroes_them_is_fine(zero: Callable[[Training], None], at_the_end: bool) -> None:
    def step(training: Training) -> None:
        if not at_the_end or training.boundary == 0:
            zero(training)
        training.backward("model")
        training.backward("model")  # two micro batches
        training.kept.check()
        training.optimizers["model"].step()
        if at_the_end:
            zero(training)

    train(step)


def test_those_of_a_second_model_are_zeroed_when_its_turn_comes() -> None:
    training = Training(discriminator=plain(), generator=plain())
    for boundary in range(4):
        training.begin(boundary)
        for name in ("discriminator", "generator"):
            training.optimizers[name].zero_grad()
            training.backward(name)
            training.optimizers[name].step()
        training.kept.check()


def test_a_step_is_looked_at_now_and_then() -> None:
    def step(training: Training) -> None:
        training.backward("model")
        training.kept.check()

    train(step, steps=3, first=5)
    with pytest.raises(UnsupportedError):
        train(step, steps=1, first=8)


def test_nothing_has_begun_before_the_first_backward_since_the_boundary() -> None:
    training = Training(model=plain())
    training.begin(0)
    assert not training.kept.has_begun()
    training.backward("model")
    assert training.kept.has_begun()
    training.begin(1)
    assert not training.kept.has_begun()


def test_a_gradient_that_is_spread_over_ranks_is_found_by_its_own_count_of_writes() -> None:
    import torch.distributed as dist
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Shard, distribute_tensor

    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        mesh = init_device_mesh("cpu", (1,))
        weight = torch.nn.Parameter(distribute_tensor(torch.ones(4, 4), mesh, [Shard(0)]))
        optimizer = torch.optim.SGD([weight], lr=0.1)
        commit: Any = SimpleNamespace(boundary=1, state=SimpleNamespace(optimizers=[("optimizer", optimizer)]))
        kept = KeptGradients()
        weight.sum().backward()
        kept.at_boundary(commit)
        kept.before_backward()
        weight.sum().backward()
        with pytest.raises(UnsupportedError):
            kept.check()
    finally:
        dist.destroy_process_group()
