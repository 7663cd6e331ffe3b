"""Which loop is taken for the one that trains; whole scripts are in tests/faults/loops."""

from __future__ import annotations

import sys
from types import SimpleNamespace

import pytest
import torch

from torchrelay.shim.capture import rng
from torchrelay.shim.instrument.activation import Activation
from torchrelay.shim.instrument.loop_tracker import LoopTracker
from torchrelay.shim.script import sites
from torchrelay.shim.script.sites import Site
from torchrelay.shim.step.step_state import StepState
from torchrelay.shim.step.training_loop import LoopHead, TrainingLoop
from torchrelay.shim.step.updates.early_updates import EarlyUpdates


class Script:
    """Loops of a script in the order in which the test runs them, and its optimizer steps."""

    def __init__(self) -> None:
        self.tracker, self.step = LoopTracker(), StepState()
        self.now_s = 100.0
        self.training = TrainingLoop(self.tracker, self.step, EarlyUpdates(), lambda: self.now_s)
        self.latest = None
        self.model = torch.nn.Linear(1, 1)

    def enter(self, site: str) -> Activation:
        self.tracker.stack.append(Activation(site, sys._getframe(), rng.capture(), 1))
        return self.tracker.stack[-1]

    def head(self, activation: Activation) -> LoopHead:
        activation.heads += 1
        found = self.training.at_head(activation, self.tracker.stack.index(activation), self.latest)
        if found.is_boundary:
            state = SimpleNamespace(roots=[self.model], optimizers=[])
            self.latest = SimpleNamespace(activation=activation, state=state)  # type: ignore[assignment]  # all that is read of it
            self.step.reached_head()
            self.step.took_boundary()
        return found

    def leave(self, activation: Activation) -> None:
        del self.tracker.stack[self.tracker.stack.index(activation) :]

    def optimizer_step(self) -> None:
        self.training.step_stack = list(self.tracker.stack)
        self.step.passed_gate(self.step.gates_passed + 1)
        self.step.updated()


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch) -> Script:
    for name, trains in (("epochs", False), ("batches", True), ("more", True), ("plain", False)):
        site = Site(name, "script.py", 1, 9, "for", None, "main", trains)
        monkeypatch.setitem(sites.SITES, name, site)
    return Script()


def test_the_outermost_loop_stands_in_until_the_innermost_one_around_a_step_comes_round(script: Script) -> None:
    epochs = script.enter("epochs")
    assert script.head(epochs) is LoopHead.BOUNDARY
    batches = script.enter("batches")
    assert script.head(batches) is LoopHead.MAY_BE_AROUND
    script.optimizer_step()
    assert script.head(batches) is LoopHead.BOUNDARY
    assert script.tracker.boundary_sites == {"batches"}
    script.optimizer_step()
    script.leave(batches)
    assert script.head(epochs) is LoopHead.AROUND
    assert script.head(script.enter("batches")) is LoopHead.BOUNDARY


def enters(script: Script, site: str) -> LoopHead:
    activation = script.enter(site)
    found = script.head(activation)
    script.leave(activation)
    return found


def test_looks_before_the_first_step_are_rare_at_a_loop_that_is_entered_again_and_again(script: Script) -> None:
    """A rollout of thousands of plays, each with loops of its own."""
    script.head(script.enter("epochs"))
    looked_at = [number for number in range(1, 300) if enters(script, "batches") is LoopHead.MAY_BE_AROUND]
    assert looked_at == [*range(1, 17), 32, 64, 128, 256]


def test_looks_before_the_first_step_leave_the_script_its_time(script: Script) -> None:
    script.head(script.enter("epochs"))
    assert enters(script, "batches") is LoopHead.MAY_BE_AROUND
    script.now_s += 8.0
    script.training.has_looked(8.0)
    assert enters(script, "batches") is LoopHead.OTHER
    assert enters(script, "more") is LoopHead.OTHER
    script.now_s += 60.0
    assert enters(script, "batches") is LoopHead.MAY_BE_AROUND
    script.training.has_looked(8.0)
    batches = script.enter("batches")
    assert script.head(batches) is LoopHead.OTHER
    script.optimizer_step()
    assert script.head(batches) is LoopHead.BOUNDARY


def test_a_further_loop_that_seems_to_train_stands_in_once(script: Script) -> None:
    batches = script.enter("batches")
    for _ in range(2):
        script.head(batches)
        script.optimizer_step()
    script.leave(batches)
    more = script.enter("more")
    assert script.head(more) is LoopHead.MAY_TRAIN
    script.leave(more)
    assert script.head(script.enter("more")) is LoopHead.OTHER


@pytest.mark.parametrize("with_gradients", [True, False])
def test_a_further_loop_stands_in_only_where_gradients_can_come_of_it(script: Script, with_gradients: bool) -> None:
    batches = script.enter("batches")
    for _ in range(2):
        script.head(batches)
        assert not script.training.stands_in(batches)
        script.optimizer_step()
    script.leave(batches)
    more = script.enter("more")
    with torch.set_grad_enabled(with_gradients):
        head = script.head(more)
    assert (head is LoopHead.MAY_TRAIN) is with_gradients
    assert script.training.stands_in(more)


@pytest.mark.parametrize("drops", [False, True])
def test_with_gradients_left_over_no_further_loop_stands_in(*, drops: bool, script: Script) -> None:
    batches = script.enter("batches")
    for _ in range(2):
        script.head(batches)
        script.optimizer_step()
    script.step.computed_gradients()
    script.model(torch.ones(1, 1)).sum().backward()
    script.leave(batches)
    if drops:
        script.model.zero_grad()
    assert script.head(script.enter("more")).is_boundary is drops


def test_a_loop_that_does_not_seem_to_train_is_walked_a_few_times_only(script: Script) -> None:
    found = []
    for _ in range(4):
        plain = script.enter("plain")
        found.append(script.head(plain))
        script.leave(plain)
    assert found == [LoopHead.BOUNDARY, LoopHead.BOUNDARY, LoopHead.OTHER, LoopHead.OTHER]
