"""What an object is does not depend on the way on which it was reached: parts of models and optimizers that variables hold."""

from __future__ import annotations

import copy
from typing import Any

import torch
from support.host_state import carry, take
from torch import nn

from torchrelay.shim.capture.models.modules import ModuleTrees
from torchrelay.shim.capture.records import undo
from torchrelay.shim.capture.values.kinds import Kind
from torchrelay.shim.capture.walks.rewalk import Rewalk


class Holder:
    def __init__(self, **values: Any) -> None:
        self.__dict__.update(values)


def build() -> dict[str, Any]:
    model = nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3))
    groups = [{"params": [model[0].weight]}, {"params": [model[0].bias], "weight_decay": 0.0}]
    return {"trainer": Holder(deep=Holder(model=model, optimizer=torch.optim.SGD(groups, lr=0.1)))}


def parts(space: dict[str, Any]) -> tuple[nn.Sequential, torch.optim.Optimizer]:
    return space["trainer"].deep.model, space["trainer"].deep.optimizer


def test_a_group_that_a_variable_holds_is_the_optimizers_own_in_another_process() -> None:
    source, target = build(), build()
    model, optimizer = parts(target)
    own = list(optimizer.param_groups)
    source["group"] = parts(source)[1].param_groups[1]
    source["group"]["lr"] = 0.5
    carry(source, target)
    assert target["group"] is own[1]
    assert optimizer.param_groups[0] is own[0]
    assert optimizer.param_groups[1]["lr"] == 0.5
    assert optimizer.param_groups[1]["params"][0] is model[0].bias


def test_a_list_of_groups_that_a_wrapper_holds_is_the_optimizers_own_in_another_process() -> None:
    def wrapped() -> dict[str, Any]:
        space = build()
        groups = parts(space)[1].param_groups
        return {"wrapper": Holder(param_groups=groups, all=[groups]), "trainer": space["trainer"]}

    source, target = wrapped(), wrapped()
    own = parts(target)[1].param_groups
    for rate, group in zip((0.5, 0.25), source["wrapper"].param_groups, strict=True):
        group["lr"] = rate
    carry(source, target)
    assert target["wrapper"].param_groups is target["wrapper"].all[0] is own is parts(target)[1].param_groups
    assert [group["lr"] for group in own] == [0.5, 0.25]
    trees = ModuleTrees()
    before = take(source, trees)
    source["wrapper"].param_groups[1]["lr"] = 0.125
    now = Rewalk(trees, before, at_gate=False).run([], {"script": source})
    assert now.nodes[now.index[id(source["wrapper"].param_groups[1])]].content["lr"] == 0.125


class Standing(torch.optim.Optimizer):
    """Stands for another one, as accelerate's does, and has nothing that torch gives optimizers."""

    def __init__(self, optimizer: torch.optim.Optimizer) -> None:
        self.optimizer, self.skipped = optimizer, 0

    @property  # type: ignore[override]  # as accelerate has it
    def param_groups(self) -> list[dict[str, Any]]:
        return self.optimizer.param_groups

    @property  # type: ignore[override]  # the same
    def state(self) -> Any:
        return self.optimizer.state

    def step(self, closure: Any = None) -> None:  # type: ignore[override]  # the same
        self.optimizer.step()


def test_one_that_stands_for_another_optimizer_is_made_without_torch_seeing_it() -> None:
    source, target = build(), build()
    optimizer = parts(source)[1]
    optimizer.param_groups[1]["lr"] = 0.5
    source["trainer"].prepared = [Standing(optimizer)]
    source["trainer"].prepared[0].skipped = 3
    target["trainer"].prepared = []
    plain = Standing.step
    carry(source, target).check_complete()
    (made,) = target["trainer"].prepared
    assert (type(made), made.skipped, made.optimizer) == (Standing, 3, parts(target)[1])
    assert made.param_groups[1]["lr"] == 0.5
    assert Standing.step is plain


def test_counts_of_an_optimizer_that_another_one_stands_for_are_carried() -> None:
    """Adafactor, and the wrapper that accelerate puts around it."""
    source, target = build(), build()
    for space in (source, target):
        space["trainer"].prepared = Standing(parts(space)[1])
    for parameter in parts(source)[0][0].parameters():
        parts(source)[1].state[parameter]["step"] = 3
    carry(source, target).check_complete()
    model, optimizer = parts(target)
    assert [optimizer.state[parameter] for parameter in model[0].parameters()] == [{"step": 3}] * 2


def test_modules_parameters_and_buffers_are_the_models_own_however_they_are_reached() -> None:
    source, target = build(), build()
    model, _ = parts(source)
    source["kept"] = {"layer": model[0], "all": [*model.parameters()], "mean": model[1].running_mean}
    source["closure"] = (model[0].weight, [model[0].bias])
    carry(source, target)
    own, _ = parts(target)
    assert target["kept"]["layer"] is own[0]
    assert all(a is b for a, b in zip(target["kept"]["all"], own.parameters(), strict=True))
    assert target["kept"]["mean"] is own[1].running_mean
    assert target["closure"][0] is own[0].weight
    assert target["closure"][1][0] is own[0].bias


def test_parts_have_the_same_paths_whoever_holds_them() -> None:
    space = build()
    plain = take(space)
    model, optimizer = parts(space)
    space["group"], space["layer"], space["bias"] = optimizer.param_groups[0], model[0], model[0].bias
    held = take(space)
    for state in (plain, held):
        group = state.nodes[state.index[id(optimizer.param_groups[0])]]
        assert group.kind is Kind.PARAM_GROUP
        assert state.path(state.index[id(group.obj)]) == "script.trainer.deep.optimizer.param_groups[0]"
    assert held.roots == plain.roots == [model]
    assert held.unknown == []


def test_a_group_that_training_has_added_is_made_again_with_this_models_parameters() -> None:
    source, target = build(), build()
    model, optimizer = parts(source)
    optimizer.add_param_group({"params": [*model[1].parameters()], "lr": 0.7})
    del optimizer.param_groups[0]["params"][0]
    carry(source, target)
    own, there = parts(target)
    assert [len(group["params"]) for group in there.param_groups] == [0, 1, 2]
    assert there.param_groups[2]["params"][0] is own[1].weight
    assert there.param_groups[2]["lr"] == 0.7


def test_a_group_that_the_step_has_added_goes_with_it() -> None:
    space = build()
    model, optimizer = parts(space)
    groups = optimizer.param_groups
    state = take(space)
    optimizer.add_param_group({"params": [*model[1].parameters()]})
    groups[0]["params"].append(model[1].weight)
    optimizer.param_groups = [{"params": []}]
    undo.undo(state)
    assert optimizer.param_groups is groups
    assert [[*map(id, group["params"])] for group in groups] == [[id(model[0].weight)], [id(model[0].bias)]]


def test_an_optimizer_that_training_has_made_is_made_again_with_this_models_parameters() -> None:
    source, target = build(), build()
    model, _ = parts(source)
    source["second"] = torch.optim.AdamW(model[1].parameters(), lr=0.3)
    rebuild = carry(source, target)
    rebuild.check_complete()
    own, _ = parts(target)
    second = target["second"]
    assert type(second) is torch.optim.AdamW
    assert second.param_groups[0]["params"][0] is own[1].weight
    assert second.param_groups[0]["lr"] == 0.3
    own[1].weight.grad = torch.ones(3)
    second.step()
    assert own[1].weight[0].item() != 1.0


def test_a_parameter_that_is_bound_anew_is_another_one_than_the_optimizers() -> None:
    source, target = build(), build()
    model, _ = parts(source)
    model[0].weight = nn.Parameter(torch.ones(3, 2))
    carry(source, target)
    own, there = parts(target)
    assert there.param_groups[0]["params"][0] is not own[0].weight
    assert there.param_groups[1]["params"][0] is own[0].bias


def test_a_walk_that_goes_on_takes_a_variable_that_holds_a_group_for_what_it_is() -> None:
    space, trees = build(), ModuleTrees()
    model, optimizer = parts(space)
    state = take(space, trees)
    space["group"] = optimizer.param_groups[0]
    space["parameters"] = [*model.parameters()]
    now = Rewalk(trees, state, at_gate=False).run([], {"script": space})
    assert now.nodes[now.index[id(optimizer.param_groups[0])]].kind is Kind.PARAM_GROUP
    space["group"]["lr"] = copy.copy(0.25)
    space["parameters"] = []
    again = Rewalk(trees, now, at_gate=False).run([], {"script": space})
    assert again.nodes[again.index[id(optimizer.param_groups[0])]].content["lr"] == 0.25
