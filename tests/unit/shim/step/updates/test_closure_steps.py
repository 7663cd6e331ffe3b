"""Optimizers that communicate within their step: the gate comes behind it, and until then it is taken back as a whole."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from support.loop_script import LoopScript

from torchrelay.shim.bootstrap import torch_hooks
from torchrelay.shim.capture.models import optimizer_order
from torchrelay.shim.script.completed_collective import CompletedCollective


class Talking(torch.optim.Optimizer):
    """Writes to its first parameter, then talks to its peers, then writes to the others."""

    def __init__(self, parameters: list[torch.nn.Parameter], script: LoopScript) -> None:
        super().__init__(parameters, {"lr": 0.5})
        self.engine, self.fail, self.places = script.engine, script._fail, list[str]()
        runtime: Any = SimpleNamespace(engine=script.engine)
        self.register_step_pre_hook(functools.partial(torch_hooks._before_step, runtime))
        self.register_step_post_hook(functools.partial(torch_hooks._after_step, runtime))

    def step(self, closure: Any = None) -> None:  # type: ignore[override]  # its overloads return what no test looks at
        (group,) = self.param_groups
        for number, parameter in enumerate(group["params"]):
            with torch.no_grad():
                parameter.add_(1.0)
            self.state[parameter]["times"] = self.state[parameter].get("times", 0) + 1
            if number == 0:
                self.engine.updates.collective_begins()
                self.places.append(self.engine.step.position.name.lower())
                self.fail()


def parameters(count: int) -> list[torch.nn.Parameter]:
    return [torch.nn.Parameter(torch.zeros(300, 300)) for _ in range(count)]


def backward(script: LoopScript, optimizers: tuple[torch.optim.Optimizer, ...]) -> None:
    script.engine.step.computed_gradients()
    script.tracker.computing()
    for parameter in (p for o in optimizers for group in o.param_groups for p in group["params"]):
        parameter.grad = -torch.ones_like(parameter)


def train(script: LoopScript, *optimizers: torch.optim.Optimizer, **names: Any) -> None:
    script.run(
        """
        for batch in range(3):
            backward()
            before(batch)
            for optimizer in optimizers:
                optimizer.step()
            gates.append(passed())
    """,
        backward=lambda: backward(script, optimizers),
        passed=lambda: script.engine.step.gates_passed,
        optimizers=optimizers,
        **{"gates": [], "before": lambda batch: None, **names},
    )


def failing_in(batch: int, script: LoopScript) -> Callable[[int], None]:
    done = []

    def before(now: int) -> None:
        if now == batch and not done:
            done.append(now)
            script.failures = 1

    return before


def test_the_gate_is_behind_a_step_from_the_one_on_that_follows_its_first_collective(script: LoopScript) -> None:
    optimizer = Talking(parameters(2), script)
    train(script, optimizer, gates=(gates := []))
    assert optimizer.places == ["update", "body", "body"]
    assert gates == [1, 2, 3]


def test_who_is_interrupted_in_it_takes_all_of_it_back_and_makes_it_again(script: LoopScript) -> None:
    optimizer = Talking(parameters(2), script)
    train(script, optimizer, before=failing_in(1, script))
    assert script.stood == ["body"]
    for parameter in optimizer.param_groups[0]["params"]:
        assert torch.equal(parameter, torch.full_like(parameter, 3.0))
        assert optimizer.state[parameter]["times"] == 3


def test_one_that_raises_and_is_called_again_has_its_gate_at_the_next_head(script: LoopScript) -> None:
    optimizer = Talking(parameters(2), script)

    def again(batch: int) -> None:
        if batch == 1:
            script.engine.updates.whole.begins(sys._getframe(), optimizer, closure=False)  # and nothing comes of it

    train(script, optimizer, before=again, gates=(gates := []))
    assert gates == [1, 1, 3]
    assert optimizer.places == ["update", "body", "body"]


def test_what_an_optimizer_within_it_writes_is_taken_back_too(script: LoopScript) -> None:
    class Wrapping(Talking):
        def step(self, closure: Any = None) -> None:  # type: ignore[override]  # as above
            inner.step()
            super().step()

    outer, own = parameters(1), parameters(1)
    inner = Talking(own, script)
    train(script, Wrapping(outer, script), before=failing_in(1, script), gates=(gates := []))
    assert script.stood == ["body"]
    assert gates == [1, 2, 3]
    for parameter in outer + own:
        assert torch.equal(parameter, torch.full_like(parameter, 3.0))
    assert inner.state[own[0]]["times"] == 3


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
def test_of_several_the_gate_is_behind_the_last_one_that_communicates(
    script: LoopScript, order: tuple[int, int]
) -> None:
    talking, silent = Talking(parameters(2), script), torch.optim.SGD(own := parameters(1), lr=1.0)
    runtime: Any = SimpleNamespace(engine=script.engine)
    silent.register_step_pre_hook(functools.partial(torch_hooks._before_step, runtime))
    silent.register_step_post_hook(functools.partial(torch_hooks._after_step, runtime))
    both = talking, silent
    train(script, both[order[0]], both[order[1]], before=failing_in(2, script), gates=(gates := []))
    assert talking.places[-2:] == ["body", "body"]
    assert gates == [1, 2, 3]
    for parameter in [*talking.param_groups[0]["params"], *own]:
        assert torch.equal(parameter, torch.full_like(parameter, 3.0))


def test_a_joiner_begins_it_with_zeros_for_tensors_that_are_still_to_come(script: LoopScript) -> None:
    half, whole, numbers = parameters(3)
    optimizer = Talking([half, whole, numbers], script)
    optimizer.state[half] = {"times": 4}
    optimizer.state[whole] = {"times": 4, "mean": torch.ones(3)}
    optimizer.state[numbers] = {"flag": True}
    optimizer_order.remember(optimizer, ((("times", "mean"), 0, 2),))
    script.engine.updates.whole.begin_without(optimizer)
    assert list(optimizer.state) == [half, whole, numbers]
    assert torch.equal(optimizer.state[half]["mean"], torch.zeros_like(half))
    assert torch.equal(optimizer.state[whole]["mean"], torch.ones(3))
    assert optimizer.state[numbers] == {"flag": True}


def test_an_answered_collective_has_a_future_that_is_done() -> None:
    assert torch.futures.collect_all([CompletedCollective().get_future()]).wait()[0].done()
