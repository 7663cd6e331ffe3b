"""What a wrapper for data parallel training wraps is a root of its own: one rank alone may have an average around it."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any

import pytest
import torch
import torch.distributed as dist
from support.host_state import carry, take
from torch.nn.parallel import DistributedDataParallel

from torchrelay.shim.adapters.parallel.ddp import Wrappers
from torchrelay.shim.capture.models import device
from torchrelay.shim.capture.models.modules import ModuleTrees
from torchrelay.shim.capture.state.host_state import HostState
from torchrelay.shim.capture.walks.rewalk import Rewalk


class Average(torch.nn.Module):
    def __init__(self, model: torch.nn.Module) -> None:
        super().__init__()
        self.online = model
        self.kept = torch.nn.Linear(2, 3)


class Holder:
    def __init__(self, **values: Any) -> None:
        self.__dict__.update(values)


@pytest.fixture(autouse=True)
def group() -> Iterator[None]:
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


WRAPPERS = Wrappers()


def wrap(model: torch.nn.Module) -> DistributedDataParallel:
    """Wrap it as a script does, whose wrappers are counted."""
    wrapped = DistributedDataParallel(model)
    WRAPPERS.add(wrapped)
    return wrapped


def build(around: str = "") -> dict[str, Any]:
    """`around`: what an average that is met before the wrapper is around."""
    model = torch.nn.Sequential(torch.nn.Linear(2, 3), torch.nn.BatchNorm1d(3))
    wrapped = wrap(model)
    average = {"": None, "model": Average(model), "wrapper": Average(wrapped)}[around]
    return {"average": average, "trainer": Holder(model=wrapped), "frozen": torch.nn.Linear(2, 2)}


def names(state: HostState) -> list[str]:
    return [path for path in device.catalogue(state, state.roots) if path.startswith(device.MODEL)]


OF_ALL = [f"module0.{name}" for name in ("0.weight", "0.bias", "1.weight", "1.bias")] + [
    f"module1.{name}" for name in ("weight", "bias")
]


def test_names_are_those_of_a_rank_without_the_average() -> None:
    assert names(take(build())) == OF_ALL
    for around in ("model", "wrapper"):
        assert names(take(build(around))) == [*OF_ALL, "module2.kept.weight", "module2.kept.bias"], around


def test_versions_are_noted_by_the_same_names() -> None:
    state = take(build("model"))
    named = [[name for name, _ in large] for large, _ in state.tree_versions]
    assert named == [["0.weight", "0.bias", "1.weight", "1.bias"], ["weight", "bias"], ["kept.weight", "kept.bias"]]


def test_the_same_lists_are_noted_as_long_as_nothing_is_bound_anew() -> None:
    space = build("model")
    trees = ModuleTrees()
    before = take(space, trees)
    now = Rewalk(trees, before, at_gate=False).run([], {"script": space})
    assert all(a[0] is b[0] for a, b in zip(before.tree_versions, now.tree_versions, strict=True))


def test_parameters_and_what_the_wrapper_keeps_are_named_once() -> None:
    space = build("model")
    state = take(space)
    kept = {id(parameter): "" for parameter in space["trainer"].model.parameters()}
    assert device.kept_paths(state.roots, state, kept) == OF_ALL[:4]
    assert [*device.parameters(state)] == [*OF_ALL, "module2.kept.weight", "module2.kept.bias"]


def test_names_do_not_depend_on_whether_a_variable_leads_to_a_wrapper_beside_its_module() -> None:
    agent = Average(wrap(torch.nn.Linear(2, 3)))
    of_both = ["module0.weight", "module0.bias", "module1.kept.weight", "module1.kept.bias"]
    assert names(take({"agent": agent})) == of_both
    assert names(take({"actor": agent.online, "agent": agent})) == of_both
    assert names(take({"inner": agent.online.module, "agent": agent})) == of_both


def test_wrapped_models_come_in_the_order_in_which_their_wrappers_were_built() -> None:
    space = build("model")
    wrappers = Wrappers()
    later = copy.deepcopy(space["frozen"])
    space = {"later": DistributedDataParallel(later), **space}
    wrappers.add(space["trainer"].model)
    wrappers.add(space["later"])
    assert take(space).roots[:2] == [space["trainer"].model.module, later]


@pytest.mark.parametrize("around", ["model", "wrapper"])
def test_the_state_is_put_into_another_process(around: str) -> None:
    source = build(around)
    target = build(around)
    source["trainer"].model.module.eval()
    source["trainer"].model.module[1].running_mean.fill_(7)
    source["average"].kept.note = "kept"
    carry(source, target)
    model = target["trainer"].model.module
    assert not model.training
    assert model[1].running_mean.eq(7).all()
    assert target["average"].kept.note == "kept"
    held = target["average"].online
    assert (held.module if around == "wrapper" else held) is model


def test_a_copy_of_a_wrapper_that_one_rank_alone_keeps_shifts_no_name() -> None:
    net = torch.nn.Linear(2, 3)
    wrapped, target = wrap(net), copy.deepcopy(net)
    of_all = names(take({"model": wrapped, "target": target}))
    for space in (
        {"model": wrapped, "target": target, "best": copy.deepcopy(wrapped)},
        {"best": copy.deepcopy(wrapped), "model": wrapped, "target": target},
    ):
        assert names(take(space))[: len(of_all)] == of_all
        state = take(space)
        assert device.catalogue(state, state.roots)["module1.weight"].data_ptr() == target.weight.data_ptr()
