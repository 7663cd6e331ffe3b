"""Parameters and buffers that get their shape in the first forward pass: they have no content before, and are as others then."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from support.host_state import carry, take
from torch import nn
from torch.nn.parameter import UninitializedBuffer, UninitializedParameter, is_lazy

from torchrelay.shim.adapters.tensors.tensor_data import DataAccess
from torchrelay.shim.capture.models import device
from torchrelay.shim.capture.models.modules import ModuleTrees
from torchrelay.shim.capture.records import undo
from torchrelay.shim.capture.walks.rewalk import Rewalk


class Scale(nn.Module):
    """Gives its tensors a shape by itself."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = UninitializedParameter()
        self.register_buffer("queue", UninitializedBuffer())

    def shape(self) -> None:
        self.weight.materialize((3,))
        nn.init.ones_(self.weight)
        self.queue.materialize((40_000,))  # type: ignore[operator, union-attr]  # an UninitializedBuffer


def build(model: nn.Module) -> dict[str, Any]:
    return {"model": model, "optimizer": torch.optim.SGD(model.parameters(), lr=0.1)}


def paths(space: dict[str, Any], trees: ModuleTrees | None = None) -> list[str]:
    state = take(space, trees)
    assert [*device.parameters(state)] == [p for p in device.catalogue(state, state.roots) if "queue" not in p]
    assert [*device.numbered(state.roots)] == [(0, space["model"])][: len(device.catalogue(state, state.roots))]
    return [*device.catalogue(state, state.roots)]


def test_nothing_is_to_give_before_there_is_a_shape() -> None:
    assert paths(build(Scale())) == []
    mixed = build(nn.Sequential(nn.LazyLinear(3), nn.Linear(3, 2)))
    assert paths(mixed) == ["module0.1.weight", "module0.1.bias"]


def test_a_shape_is_noticed_where_nothing_else_of_the_module_changes() -> None:
    space = build(Scale())
    trees = ModuleTrees()
    before = take(space, trees)
    still = Rewalk(trees, before, at_gate=False).run([], {"script": space})
    assert still.tree_versions[0][0] is before.tree_versions[0][0]
    space["model"].shape()
    now = Rewalk(trees, still, at_gate=False).run([], {"script": space})
    assert {name for name, _ in now.tree_versions[0][0]} == {"weight", "queue"}
    assert set(device.catalogue(now, now.roots)) == {"module0.weight", "module0.queue"}


@pytest.mark.parametrize("lazily", [nn.LazyLinear, nn.LazyBatchNorm1d])
def test_another_process_is_given_the_shape_and_what_the_module_has_become(lazily: type) -> None:
    def made() -> dict[str, Any]:
        return build(nn.Sequential(lazily(3) if lazily is nn.LazyLinear else lazily(), nn.ReLU()))

    source = made()
    source["model"](torch.ones(4, 5))
    target = made()
    carry(source, target)
    one, other = source["model"][0], target["model"][0]
    assert type(other) is type(one)
    assert other.weight.shape == one.weight.shape
    assert not other._forward_pre_hooks
    assert other.extra_repr() == one.extra_repr()
    assert target["optimizer"].param_groups[0]["params"][0] is other.weight
    assert target["model"](torch.ones(4, 5)).shape == source["model"](torch.ones(4, 5)).shape


def test_another_process_has_no_shape_either_where_there_is_none() -> None:
    source = build(nn.Sequential(nn.LazyLinear(3), Scale()))
    target = build(nn.Sequential(nn.LazyLinear(3), Scale()))
    target["model"][1].shape()
    carry(source, target)
    assert all(map(is_lazy, target["model"].parameters()))
    assert isinstance(target["model"][0], nn.LazyLinear)


def test_a_survivor_that_goes_back_is_seen_not_to_be_where_it_was() -> None:
    """What a first forward has made stays: nobody may take it for the state at the head."""
    space = build(Scale())
    state = take(space)
    space["model"].shape()
    undo.undo(state)
    now = take(space)
    then = state.nodes[state.index[id(space["model"])]].content.forms
    assert then != now.nodes[now.index[id(space["model"])]].content.forms


def test_a_tensor_gets_its_shape_where_accesses_to_data_are_told() -> None:
    told: list[Any] = []
    access = DataAccess(lambda tensor, alias: None, told.append)
    model = Scale()
    access.begin()
    try:
        model.shape()
        model.weight.data = torch.zeros(4)
    finally:
        access.end()
    assert [id(tensor) for tensor in told] == [id(model.weight)]
    assert model.weight.tolist() == [0.0] * 4
