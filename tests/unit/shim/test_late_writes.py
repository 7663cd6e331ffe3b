from __future__ import annotations

from typing import Any

import pytest
import torch
from support.host_state import take

from torchrelay.protocol.errors import StateMismatchError
from torchrelay.shim.capture import device
from torchrelay.shim.capture.host_state import HostState
from torchrelay.shim.capture.modules import ModuleTrees
from torchrelay.shim.late_writes import REBOUND, UNKNOWN, LateWrites
from torchrelay.shim.tail import Tail


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
    assert LateWrites().before == UNKNOWN


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


def test_what_the_step_before_wrote_is_remembered(names: dict[str, Any], trees: ModuleTrees) -> None:
    late = LateWrites()
    late.note(take(names, trees))
    names["average"].add_(1)
    late.note(take(names, trees))
    assert late.before == {"value.script.average": 1}
    late.note(take(names, trees))
    assert late.before == {}


def go_through(names: dict[str, Any], late: dict[str, int], act: Any) -> None:
    """The rest of a step, by a joiner that has the donor's tensors."""
    tail = Tail(whole(take(names)), late)
    try:
        act(names)
    finally:
        tail.leave()
    tail.put_back(take(names))


def test_what_was_written_twice_gets_the_donors_content_back(names: dict[str, Any]) -> None:
    names["average"].fill_(3.0)
    go_through(names, {"value.script.average": 1}, lambda n: n["average"].mul_(0.5))
    assert torch.equal(names["average"], torch.full((20_000,), 3.0))


def test_a_tensor_that_is_made_anew_gets_the_donors_content(names: dict[str, Any]) -> None:
    names["average"].fill_(3.0)
    go_through(names, {"value.script.average": REBOUND}, lambda n: n.update(average=n["average"] * 0.5))
    assert torch.equal(names["average"], torch.full((20_000,), 3.0))


def append(names: dict[str, Any]) -> None:
    names["average"].mul_(0.5)
    names["seen"] = names["average"][:1].item()


def save(names: dict[str, Any]) -> None:
    names["average"].mul_(0.5)
    names["seen"] = names["average"].sum().numpy()


def keep(names: dict[str, Any]) -> None:
    names["average"].mul_(0.5)
    names["kept"] = names["average"].mean()


def keep_in_place(names: dict[str, Any]) -> None:
    names["average"].mul_(0.5)
    names["constant"].add_(names["average"])


@pytest.mark.parametrize(
    ("act", "late", "reason"),
    [
        pytest.param(append, {"value.script.average": 1}, "reads gradients or value.script.average", id="a number"),
        pytest.param(save, {"value.script.average": 1}, "reads gradients or value.script.average", id="an array"),
        pytest.param(keep, {"value.script.average": 1}, "keeps what it computed", id="a tensor"),
        pytest.param(
            keep_in_place, {"value.script.average": 1}, "constant was written 1 times", id="in another tensor"
        ),
        pytest.param(append, {"value.script.average": 2}, "written 1 times", id="another number of writes"),
        pytest.param(append, {}, "written 1 times", id="a write that the donor did not do"),
        pytest.param(
            lambda n: None, {"value.script.average": 1}, "written 0 times", id="a write that only the donor did"
        ),
    ],
)
def test_whatever_cannot_be_known_is_refused(
    names: dict[str, Any], act: Any, late: dict[str, int], reason: str
) -> None:
    with pytest.raises(StateMismatchError, match=reason):
        go_through(names, late, act)


def test_reading_what_is_not_late_and_asking_for_shapes_is_free(names: dict[str, Any]) -> None:
    def act(n: dict[str, Any]) -> None:
        n["average"].mul_(0.5)
        n["sum"] = n["constant"].sum().item() + n["average"].numel() + n["average"].shape[0]

    go_through(names, {"value.script.average": 1}, act)
    assert names["sum"] == 60_000


def test_a_parameter_outside_of_modules_is_found_through_its_optimizer() -> None:
    bare = torch.nn.Parameter(torch.ones(3))
    state = take({"optimizer": torch.optim.SGD([bare], lr=0.1)})
    assert [t is bare for t in whole(state).values()] == [True]
    assert list(device.catalogue(state, state.roots)) == ["parameter0.0"]
