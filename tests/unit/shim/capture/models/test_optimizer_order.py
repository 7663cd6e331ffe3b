"""The order of the entries of an optimizer's state, where some are numbers and some tensors: before and after tensors have come."""

from __future__ import annotations

from typing import Any

import torch
from support.host_state import carry, differences, take

from torchrelay.shim.capture.models import optimizer_order
from torchrelay.shim.capture.records.effects import effects
from torchrelay.shim.capture.records.encode import decode, encode
from torchrelay.shim.capture.values.kinds import Kind


class Counting(torch.optim.SGD):
    """Counts its steps in a plain number, as many optimizers of scripts do."""

    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            for parameter in group["params"]:
                state = self.state[parameter]
                if not state:
                    state["mean"], state["step"] = torch.zeros_like(parameter), 0
                state["mean"] += 1
                state["step"] += 1


class Factored(torch.optim.SGD):
    """Keeps averages of rows alone, in another precision."""

    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            for parameter in group["params"]:
                state = self.state[parameter]
                if not state:
                    state["step"], state["rows"] = 0, torch.zeros(parameter.shape[:1], dtype=torch.float64)
                state["rows"] += parameter.detach().reshape(parameter.shape[0], -1).sum(1)
                state["step"] += 1


def names() -> dict[str, Any]:
    model = torch.nn.Linear(2, 2)
    return {"model": model, "optimizer": Counting(model.parameters(), lr=0.1)}


def test_a_process_that_rehearses_without_tensors_holds_the_order_that_was_recorded() -> None:
    source, target = names(), names()
    source["optimizer"].step()
    carry(source, target)
    assert differences(decode(encode(take(source))), decode(encode(take(target)))) == []
    parameters = list(target["model"].parameters())
    for parameter in parameters:
        target["optimizer"].state[parameter]["mean"] = torch.ones_like(parameter)
    optimizer_order.restore(target["optimizer"])
    assert [list(target["optimizer"].state[p]) for p in parameters] == [["mean", "step"]] * 2
    assert differences(decode(encode(take(source))), decode(encode(take(target)))) == []


def test_an_optimizer_can_be_stepped_before_its_tensors_have_come() -> None:
    source, target = names(), names()
    source["optimizer"].step()
    carry(source, target)
    optimizer_order.make_missing(target["optimizer"])
    assert differences(decode(encode(take(source))), decode(encode(take(target)))) == []
    target["optimizer"].step()
    assert [values["step"] for values in target["optimizer"].state.values()] == [2, 2]


def test_tensors_that_have_not_come_have_the_form_that_they_will_have() -> None:
    source, target = names(), names()
    for one in (source, target):
        one["optimizer"] = Factored(one["model"].parameters(), lr=0.1)
    source["optimizer"].step()
    carry(source, target)
    optimizer_order.make_missing(target["optimizer"])
    assert differences(decode(encode(take(source))), decode(encode(take(target)))) == []
    target["optimizer"].step()
    rows = [values["rows"] for values in target["optimizer"].state.values()]
    assert [(tuple(r.shape), r.dtype) for r in rows] == [((2,), torch.float64)] * 2
    assert list(target["optimizer"].state[target["model"].weight]) == ["step", "rows"]


def test_one_order_of_many_parameters_is_told_once() -> None:
    model = torch.nn.Sequential(*(torch.nn.Linear(2, 2) for _ in range(4)))
    optimizer = Counting(model.parameters(), lr=0.1)
    optimizer.step()
    optimizer.state[model[2].weight]["more"] = 1
    (node,) = (
        node for node in take({"model": model, "optimizer": optimizer}).nodes if node.kind is Kind.OPTIMIZER_STATE
    )
    assert node.content[optimizer_order.KEY] == (
        (("mean", "step"), 0, 4), (("mean", "step", "more"), 4, 5), (("mean", "step"), 5, 8)
    )  # fmt: skip


def test_an_order_is_nothing_that_an_update_computes() -> None:
    one = names()
    then = take(one)
    one["optimizer"].step()
    found = {path for _, path in effects(then, take(one))}
    assert found == {"script.optimizer.state[(0, 'step')]", "script.optimizer.state[(1, 'step')]"}


class Factors:
    def __init__(self) -> None:
        self.rows = torch.zeros(2)


class Preconditioned(torch.optim.SGD):
    """Makes its state with itself, and has what computes with it in objects of its own."""

    def __init__(self, parameters: Any) -> None:
        super().__init__(parameters, lr=0.1)
        for group in self.param_groups:
            for parameter in group["params"]:
                self.state[parameter] = {"step": 0, "factors": Factors()}
        held = [values["factors"].rows for values in self.state.values()]
        self.add = lambda: [rows.add_(1.0) for rows in held]

    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        self.add()


def test_objects_that_an_optimizer_makes_with_itself_stay_those_that_it_computes_with() -> None:
    source, target = names(), names()
    for one in (source, target):
        one["optimizer"] = Preconditioned(one["model"].parameters())
    source["optimizer"].step()
    carry(source, target)
    target["optimizer"].step()
    rows = [values["factors"].rows.tolist() for values in target["optimizer"].state.values()]
    assert rows == [[2.0, 2.0]] * 2


def test_objects_that_training_has_made_are_made() -> None:
    source, target = names(), names()
    source["optimizer"].state[source["model"].bias] = {"step": 1, "factors": Factors()}
    carry(source, target)
    made = target["optimizer"].state[target["model"].bias]["factors"]
    assert type(made) is Factors
    assert target["model"].weight not in target["optimizer"].state
