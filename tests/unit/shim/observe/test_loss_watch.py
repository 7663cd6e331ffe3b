from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any

import torch

from torchrelay.protocol.messages import NumberAlarm, NumbersDecided
from torchrelay.protocol.options.numbers import MINIMUM_STEPS, parse_watches
from torchrelay.shim.observe.loss_watch import LossWatch


class Engine:
    """`answer`: what the controller says while the rank waits."""

    def __init__(self) -> None:
        self.sent: list[NumberAlarm] = []
        self.link = SimpleNamespace(send=self.sent.append)
        self.recovery = SimpleNamespace(wait_until=self._wait, wake=lambda: None)
        self.waits: list[bool] = []
        self.numbers: LossWatch

    def _wait(self, done: Any) -> None:
        assert not done()
        self.numbers.decided(NumbersDecided(self.sent[-1].boundary))
        assert done()

    def waiting(self, on: bool) -> None:
        self.waits.append(on)


def watched(text: str) -> tuple[Engine, LossWatch]:
    engine = Engine()
    engine.numbers = LossWatch(engine, parse_watches(text))  # type: ignore[arg-type]  # a stand-in
    return engine, engine.numbers


def commit(boundary: int, *gradients: float) -> Any:
    parameter = torch.nn.Parameter(torch.zeros(len(gradients)))
    parameter.grad = torch.tensor(gradients)
    optimizer = torch.optim.SGD([parameter], lr=0.1)
    return SimpleNamespace(boundary=boundary, state=SimpleNamespace(optimizers=[("optimizer", optimizer)]))


def step(numbers: LossWatch, boundary: int, loss: float, *gradients: float) -> None:
    numbers.begin_step()
    numbers.backward(torch.tensor(loss, requires_grad=True))
    numbers.at_gate(commit(boundary, *gradients))
    numbers.passed()


def test_a_loss_that_is_not_finite_holds_the_rank_before_its_gate_until_somebody_decides() -> None:
    engine, numbers = watched("loss:action=stop")
    step(numbers, 0, 1.0)
    assert (engine.sent, engine.waits) == ([], [])
    step(numbers, 1, math.nan)
    (alarm,) = engine.sent
    assert (alarm.what, alarm.boundary, alarm.action, alarm.text) == ("loss", 1, "stop", "loss of step 2 is nan")
    assert engine.waits == [True, False]


def test_an_alert_holds_nobody() -> None:
    engine, numbers = watched("loss;grad-norm")
    step(numbers, 0, math.inf, 1.0, math.nan)
    assert [alarm.what for alarm in engine.sent] == ["loss", "grad-norm"]
    assert engine.waits == []


def test_the_gradient_norm_is_that_of_all_gradients_together() -> None:
    engine, numbers = watched("grad-norm:over=2")
    for boundary in range(MINIMUM_STEPS):
        step(numbers, boundary, 0.0, 3.0, 4.0)
    step(numbers, MINIMUM_STEPS, 0.0, 6.0, 9.0)
    (alarm,) = engine.sent
    assert math.isclose(alarm.mean, 5.0)
    assert math.isclose(alarm.value, math.hypot(6.0, 9.0), rel_tol=1e-6)


def test_micro_batches_add_up_and_a_step_that_is_done_again_starts_anew() -> None:
    engine, numbers = watched("loss:over=2")
    for boundary in range(MINIMUM_STEPS):
        numbers.begin_step()
        numbers.backward([torch.tensor(1.0), torch.tensor(1.0)])
        numbers.at_gate(commit(boundary))
        numbers.passed()
    numbers.begin_step()
    numbers.backward(torch.tensor(3.0))  # interrupted before its gate
    step(numbers, MINIMUM_STEPS, 3.0)
    assert engine.sent == []


def test_a_number_that_never_passed_the_gate_is_not_usual() -> None:
    engine, numbers = watched("loss:over=2")
    for boundary in range(MINIMUM_STEPS):
        step(numbers, boundary, 1.0)
    for _ in range(20):
        numbers.begin_step()
        numbers.backward(torch.tensor(100.0))
        numbers.at_gate(commit(MINIMUM_STEPS))
    assert len(engine.sent) == 20
    assert engine.sent[-1].mean == 1.0


def test_what_is_no_scalar_and_what_is_not_watched_is_passed_by() -> None:
    engine, numbers = watched("grad-norm")
    step(numbers, 0, math.nan, 1.0)
    assert engine.sent == []
    engine, numbers = watched("loss")
    numbers.begin_step()
    numbers.backward(torch.full((2,), math.nan))
    numbers.at_gate(commit(0))
    assert engine.sent == []
