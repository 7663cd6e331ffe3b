"""What a script does to its optimizer's state beside the update goes back with the step, or the step does not go back."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable

import pytest
import torch

from torchrelay.protocol.errors import StateMismatchError
from torchrelay.shim.capture.state.host_state import HostState
from torchrelay.shim.step.updates.late_writes import REBOUND
from torchrelay.shim.step.updates.optimizer_states import OptimizerStates


class Trained:
    """An optimizer of two parameters that has done a step, as a step's head found it."""

    def __init__(self) -> None:
        self.parameters = [torch.nn.Parameter(torch.ones(2)) for _ in range(2)]
        self.optimizer = torch.optim.Adam(self.parameters)
        self.step()
        self.state, self.states = HostState(), OptimizerStates()
        self.state.optimizers.append(("optimizer", self.optimizer))
        self.states.at_boundary(self.state)
        self.then = self.bound()

    def step(self) -> None:
        for parameter in self.parameters:
            parameter.grad = torch.ones(2)
        self.optimizer.step()

    def bound(self) -> tuple[int, list[tuple[int, dict[str, int]]]]:
        states = self.optimizer.state
        return id(states), [
            (id(p), {k: id(v) for k, v in (values if isinstance(values, dict) else {"": values}).items()})
            for p, values in states.items()
        ]


def clear(t: Trained) -> None:
    t.optimizer.state.clear()


def exchange(t: Trained) -> None:
    t.optimizer.state = defaultdict(dict)


def scale(t: Trained) -> None:
    for values in t.optimizer.state.values():
        values["exp_avg"] = values["exp_avg"] * 0.5


def count(t: Trained) -> None:
    """Beside what is kept for each parameter."""
    t.optimizer.state["steps"] = 8  # type: ignore[index]  # as some optimizers do


def move(t: Trained) -> None:
    new = torch.nn.Parameter(torch.ones(3))
    values = t.optimizer.state.pop(t.parameters[0])
    values["exp_avg"] = torch.cat([values["exp_avg"], torch.zeros(1)])
    t.optimizer.state[new] = values
    t.optimizer.param_groups[0]["params"][0] = new


@pytest.mark.parametrize("act", [clear, exchange, scale, count, move])
def test_what_is_bound_is_put_back(act: Callable[[Trained], None]) -> None:
    t = Trained()
    act(t)
    assert t.bound() != t.then
    t.states.put_back({})
    assert t.bound() == t.then


def test_what_is_kept_for_no_parameter_stays() -> None:
    t = Trained()
    t.optimizer.state["steps"] = 7  # type: ignore[index]  # as some optimizers do
    t.states.at_boundary(t.state)
    t.optimizer.state["steps"] = 8  # type: ignore[index]  # the same
    t.states.put_back({})
    assert t.optimizer.state["steps"] == 7  # type: ignore[index]  # the same
    assert [*t.optimizer.state][:2] == t.parameters


def test_what_was_written_in_place_is_named_unless_its_content_was_put_back() -> None:
    t = Trained()
    assert t.states.written() == []
    average = t.optimizer.state[t.parameters[1]]["exp_avg"]
    version = average._version
    average.mul_(0.5)
    assert t.states.written() == [("optimizer0.1.exp_avg", average)]
    with pytest.raises(StateMismatchError, match=r"optimizer0\.1\.exp_avg"):
        t.states.put_back({})
    with pytest.raises(StateMismatchError, match=r"optimizer0\.1\.exp_avg"):
        t.states.put_back({id(average): version + 1})  # copied when it had been written to already
    t.states.put_back({id(average): version})
    t.states.put_back({})


def test_tensors_are_found_by_their_paths() -> None:
    t = Trained()
    found = [*t.states.at({"optimizer0.0.exp_avg", "optimizer0.7.exp_avg"})]
    average = t.optimizer.state[t.parameters[0]]["exp_avg"]
    assert found == [("optimizer0.0.exp_avg", average, average._version)]


def test_an_update_alone_leaves_nothing_late() -> None:
    t = Trained()
    t.step()
    t.states.note(t.state)
    assert t.states.late(t.state, at_head=False) == {}
    t.states.at_boundary(t.state)
    assert t.states.late(t.state, at_head=True) == {}


def test_what_is_written_behind_the_update_is_late_and_counted() -> None:
    t = Trained()
    t.step()
    t.states.note(t.state)
    t.optimizer.state[t.parameters[0]]["exp_avg"].mul_(0.5).mul_(2)
    values = t.optimizer.state[t.parameters[1]]
    values["exp_avg_sq"] = values["exp_avg_sq"] * 0.5
    late = {"optimizer0.0.exp_avg": 2, "optimizer0.1.exp_avg_sq": REBOUND}
    assert t.states.late(t.state, at_head=False) == late
    t.states.at_boundary(t.state)
    t.optimizer.state[t.parameters[1]]["exp_avg"].mul_(2)  # in the next step, which is done again
    assert t.states.late(t.state, at_head=True) == late


def test_an_optimizer_that_stands_for_another_one_is_looked_at_once() -> None:
    t = Trained()
    t.state.optimizers.append(("stand-in", t.optimizer))
    t.states.at_boundary(t.state)
    t.optimizer.state[t.parameters[0]]["exp_avg"].mul_(0.5)
    assert [path for path, _ in t.states.written()] == ["optimizer0.0.exp_avg"]
