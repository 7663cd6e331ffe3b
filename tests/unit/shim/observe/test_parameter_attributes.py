"""Which attributes of parameters count as changed by training."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from support.host_state import take

from torchrelay.protocol.names import BARS
from torchrelay.shim.capture.models.modules import ModuleTrees
from torchrelay.shim.observe.parameter_attributes import ParameterAttributes

Parameter = torch.nn.Parameter


def seen(begin: Callable[[Parameter], None], step: Callable[[Parameter], None]) -> list[str]:
    model, trees, attributes = torch.nn.Linear(2, 2), ModuleTrees(), ParameterAttributes()
    begin(model.weight)
    for boundary in range(3):
        attributes.look(take({"model": model}, trees), boundary)
        step(model.weight)
    assert bool(attributes.gaps()) == bool(attributes.found)
    assert all(gap.effect == BARS and "weight" in gap.text for gap in attributes.gaps())
    return [*attributes.found]


def mark(weight: Parameter) -> None:
    weight.is_marked, weight.sizes = True, [1, 2]


def nothing(weight: Parameter) -> None:
    pass


def count(weight: Parameter) -> None:
    weight.steps = getattr(weight, "steps", 0) + 1


def average(weight: Parameter) -> None:
    if not hasattr(weight, "average"):
        weight.average = torch.zeros(2, 2)
    weight.average += 1


def bind_anew(weight: Parameter) -> None:
    weight.grad_sample = [torch.zeros(2)]


def test_what_set_up_has_put_there_is_no_change() -> None:
    assert seen(mark, nothing) == []


@pytest.mark.parametrize(
    ("step", "name"), [(count, "steps"), (average, "average"), (bind_anew, "grad_sample"), (mark, "is_marked")]
)
def test_what_a_step_puts_there_or_writes_to_is_one(step: Callable[[Parameter], None], name: str) -> None:
    assert f"module0.weight.{name}" in seen(nothing, step)


def test_between_two_looks_at_all_those_that_are_known_are_looked_at() -> None:
    model, trees, attributes = torch.nn.Linear(2, 2), ModuleTrees(), ParameterAttributes()
    mark(model.weight)
    for boundary in (0, 8, 9):
        attributes.look(take({"model": model}, trees), boundary)
    model.weight.is_marked = False
    attributes.look(take({"model": model}, trees), 11)
    assert [*attributes.found] == ["module0.weight.is_marked"]


def test_a_process_that_takes_over_a_rank_meets_them_at_a_later_boundary() -> None:
    model, trees, attributes = torch.nn.Linear(2, 2), ModuleTrees(), ParameterAttributes()
    mark(model.weight)
    attributes.look(take({"model": model}, trees), 12)
    assert not attributes.found
    count(model.weight)
    attributes.look(take({"model": model}, trees), 13)
    assert [*attributes.found] == ["module0.weight.steps"]
