from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from support.host_state import take

from torchrelay.shim.capture.models import device
from torchrelay.shim.capture.rng import tensor_bytes
from torchrelay.shim.journal import payload
from torchrelay.shim.step import replaced_tensors
from torchrelay.shim.step.replaced_tensors import ReplacedTensors
from torchrelay.shim.step.updates.late_writes import LateWrites


class Reporter:
    def __init__(self) -> None:
        self.said: list[int] = []

    def replaced_too_large(self, size_bytes: int) -> None:
        self.said.append(size_bytes)


def snapshot(model: torch.nn.Module, number: int, activation: str) -> Any:
    return SimpleNamespace(state=take({"model": model}), boundary=number, activation=activation)


def seen(before: Any, now: Any) -> tuple[ReplacedTensors, Reporter]:
    reporter, late = Reporter(), LateWrites()
    late.note(before.state)
    engine: Any = SimpleNamespace(reporter=reporter, updates=SimpleNamespace(late=late))
    replaced = ReplacedTensors(engine)
    replaced.at_boundary(before, now)
    return replaced, reporter


def test_a_model_that_is_made_anew_between_two_loops_is_kept_until_the_next_gate() -> None:
    old, new = torch.nn.Linear(2, 2), torch.nn.Linear(2, 2)
    before = snapshot(old, 3, "first")
    replaced, _ = seen(before, snapshot(new, 4, "second"))
    assert replaced.tensors["before.module0.weight"].data_ptr() == old.weight.data_ptr()
    assert replaced.late == {}
    replaced.drop()
    assert not replaced.tensors
    assert replaced.late is None


def test_a_model_that_goes_on_is_not_given_twice() -> None:
    model = torch.nn.Linear(2, 2)
    assert not seen(snapshot(model, 3, "first"), snapshot(model, 4, "second"))[0].tensors


@pytest.mark.parametrize(("number", "activation"), [(3, "first"), (3, "second"), (5, "second")])
def test_only_the_step_before_can_be_gone_through_again(number: int, activation: str) -> None:
    before, now = snapshot(torch.nn.Linear(2, 2), 3, "first"), snapshot(torch.nn.Linear(2, 2), number, activation)
    assert not seen(before, now)[0].tensors


def test_what_is_too_large_to_be_kept_beside_the_new_one_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replaced_tensors, "MOST_BYTES", 23)
    before, now = snapshot(torch.nn.Linear(2, 2), 3, "first"), snapshot(torch.nn.Linear(2, 2), 4, "second")
    replaced, reporter = seen(before, now)
    assert not replaced.tensors
    assert reporter.said == [24]


def test_a_model_that_comes_before_another_one_within_the_loop_leaves_the_names_of_the_boundary_before() -> None:
    old, new = torch.nn.Linear(2, 2), torch.nn.Linear(2, 2)
    before, now = snapshot(old, 3, "first"), snapshot(old, 4, "first")
    now.state = take({"a_new": new, "model": old})
    given = seen(before, now)[0].to_give()
    assert given["before.module0.weight"].data_ptr() == old.weight.data_ptr()
    names = payload.load(tensor_bytes(given[device.NAMES]), dict)
    assert names["module1.weight"] == "module0.weight"
    assert names["module0.weight"] == ""
