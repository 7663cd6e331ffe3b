"""The order of the entries of an optimizer's state, where some are numbers and some tensors: before and after tensors have come."""

from __future__ import annotations

from typing import Any

import torch
from support.host_state import carry, take

from torchrelay.shim.capture.models import optimizer_order
from torchrelay.shim.capture.records.compare import differences
from torchrelay.shim.capture.records.encode import decode, encode


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
