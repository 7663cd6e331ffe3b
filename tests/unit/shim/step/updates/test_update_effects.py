"""Which updates are looked behind, and what is told of them."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from typing import Any

import torch
from support.host_state import take

from torchrelay.shim.capture.models.modules import ModuleTrees
from torchrelay.shim.step.updates import update_effects
from torchrelay.shim.step.updates.update_effects import UpdateEffects


class Steps:
    def __init__(self) -> None:
        self.names: dict[str, Any] = {"scale": 1.0, "count": 0}
        self.trees, self.effects = ModuleTrees(), UpdateEffects()
        self.walks = 0

    def step(self, *updates: Callable[[], object]) -> dict[str, tuple[Any, Any]]:
        """Return what is told before the next gate, by path."""
        self.effects.at_gate(take(self.names, self.trees))
        self.effects.gate_passed()
        for number, update in enumerate(updates or (self.count,)):
            update()
            self.effects.note(self.walk, is_last=number == len(updates or (0,)) - 1)
        latest = self.effects.latest()
        return {way[1]: effect[:2] for way, effect in pickle.loads(latest).items()} if latest else {}

    def walk(self) -> Any:
        self.walks += 1
        return take(self.names, self.trees)

    def count(self) -> None:
        self.names["count"] += 1

    def adapt(self) -> None:
        self.names["scale"] *= 0.5


def test_the_first_updates_are_looked_behind_and_then_some_if_they_only_count() -> None:
    steps = Steps()
    for _ in range(update_effects._LOOK_EACH + 1):
        steps.step()
    assert steps.walks == update_effects._FIRST_UPDATES + 1
    assert steps.effects.known() == b""


def test_what_the_first_update_makes_is_no_reason_to_look_behind_each() -> None:
    """Such as the mark that a scheduler leaves at an optimizer, or the state of one that keeps its counts in numbers."""
    steps = Steps()
    steps.step(lambda: steps.names.update(called=True, steps=1))
    for _ in range(10):
        steps.step()
    assert steps.walks == update_effects._FIRST_UPDATES


def test_optimizers_of_torch_with_a_scheduler_are_not_looked_behind_each_time() -> None:
    steps = Steps()
    model = torch.nn.Linear(2, 2)
    optimizer = torch.optim.AdamW(model.parameters())
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1)
    steps.names = {"model": model, "optimizer": optimizer, "scheduler": scheduler}
    for _ in range(10):
        optimizer.zero_grad()
        model(torch.ones(1, 2)).sum().backward()
        steps.step(optimizer.step)
        scheduler.step()
    assert steps.walks == update_effects._FIRST_UPDATES


def test_a_tensor_that_each_update_makes_anew_is_looked_for_each_time() -> None:
    steps = Steps()
    for _ in range(10):
        steps.names.pop("found", None)
        steps.step(lambda: steps.names.update(found=torch.zeros(1)))
    assert steps.walks == 10
    assert {(way[1], more) for way, more in steps.effects.changed_before} == {("script.found", False)}


def test_once_one_has_left_more_each_one_is_looked_behind() -> None:
    steps = Steps()
    for _ in range(10):
        steps.step(steps.adapt)
    assert steps.walks == 10


def test_what_an_update_has_changed_is_told_with_what_was_there_before() -> None:
    steps = Steps()
    assert steps.step(steps.adapt) == {"script.scale": ((1.0,), (0.5,))}
    assert steps.step(steps.adapt, steps.count) == {"script.scale": ((0.5,), (0.25,)), "script.count": ((0,), (1,))}


def test_all_updates_of_a_step_are_told_together() -> None:
    steps = Steps()
    steps.step(steps.adapt)
    assert steps.step(steps.adapt, steps.adapt)["script.scale"] == ((0.5,), (0.125,))


def test_what_earlier_updates_have_changed_is_told_when_this_one_leaves_it_as_it_was() -> None:
    steps = Steps()
    steps.step(steps.adapt)
    assert steps.step() == {"script.scale": ((0.5,), (0.5,)), "script.count": ((0,), (1,))}


def test_nothing_is_told_between_a_gate_and_the_end_of_the_update_behind_it() -> None:
    steps = Steps()
    steps.step(steps.adapt)
    steps.effects.at_gate(take(steps.names, steps.trees))
    assert steps.effects.latest()  # others may still be behind the gate before
    steps.effects.gate_passed()
    assert not steps.effects.latest()


def test_no_look_is_another_answer_than_no_change() -> None:
    steps = Steps()
    for _ in range(update_effects._FIRST_UPDATES):
        steps.step()
    steps.step()
    assert steps.effects.latest() == b""
    steps = Steps()
    steps.step(lambda: None)
    assert pickle.loads(steps.effects.latest()) == {}


def test_a_process_that_takes_over_a_rank_knows_what_updates_have_changed_and_looks_behind_each() -> None:
    steps = Steps()
    steps.step(steps.adapt, steps.count)
    successor = Steps()
    successor.effects.take_over(steps.effects.known())
    assert {(way[1], more) for way, more in successor.effects.changed_before} == {("script.scale", True)}
    for _ in range(10):
        successor.step()
    assert successor.walks == 10
    assert successor.effects.known() == steps.effects.known()
