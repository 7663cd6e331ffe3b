from __future__ import annotations

from typing import Any

import pytest
import torch
from support.host_state import take

from torchrelay.shim.capture.models import device
from torchrelay.shim.capture.models.modules import ModuleTrees
from torchrelay.shim.capture.state.host_state import HostState
from torchrelay.shim.step.updates.late_writes import REBOUND, UNKNOWN, LateWrites


@pytest.fixture
def names() -> dict[str, Any]:
    return {"model": torch.nn.Linear(2, 2), "average": torch.zeros(20_000), "constant": torch.ones(20_000)}


@pytest.fixture
def trees() -> ModuleTrees:
    return ModuleTrees()


def whole(state: HostState) -> dict[str, torch.Tensor]:
    return device.whole(state, state.roots)


def test_nothing_is_known_before_the_first_update(names: dict[str, Any], trees: ModuleTrees) -> None:
    assert LateWrites().until(take(names, trees)) == UNKNOWN


def test_only_what_was_written_since_the_update_is_late(names: dict[str, Any], trees: ModuleTrees) -> None:
    late, boundary = LateWrites(), take(names, trees)
    names["constant"].add_(1)
    late.note(boundary)
    assert late.until(boundary.as_it_is_now()) == {}
    names["average"].add_(1).mul_(2)
    with torch.no_grad():
        names["model"].bias.zero_()
    assert late.until(boundary.as_it_is_now()) == {"value.script.average": 2, "module0.bias": 1}
    assert late.until(take(names, trees)) == {"value.script.average": 2, "module0.bias": 1}


def test_a_tensor_in_the_place_of_another_is_late(names: dict[str, Any], trees: ModuleTrees) -> None:
    late = LateWrites()
    late.note(take(names, trees))
    names["average"] = names["average"] + 1
    assert late.until(take(names, trees)) == {"value.script.average": REBOUND}


def test_a_parameter_outside_of_modules_is_found_through_its_optimizer() -> None:
    bare = torch.nn.Parameter(torch.ones(3))
    state = take({"optimizer": torch.optim.SGD([bare], lr=0.1)})
    assert [t is bare for t in whole(state).values()] == [True]
    assert list(device.catalogue(state, state.roots)) == ["parameter0.0"]


class Metric(torch.nn.Module):
    """Without tensors of its own."""


def test_late_tensors_are_named_as_the_catalogue_names_them_where_metrics_are_modules_too(trees: ModuleTrees) -> None:
    names: dict[str, Any] = {"accuracy": Metric(), "average": torch.nn.Linear(2, 2), "model": torch.nn.Linear(2, 2)}
    late, boundary = LateWrites(), take(names, trees)
    assert boundary.roots[0] is names["accuracy"]
    late.note(boundary)
    with torch.no_grad():
        names["average"].weight.zero_()
        names["model"].bias.zero_()
    written = late.until(boundary.as_it_is_now())
    assert {id(whole(boundary)[path]) for path in written} == {id(names["average"].weight), id(names["model"].bias)}
