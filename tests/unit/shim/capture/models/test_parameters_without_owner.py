"""Parameters that no model and no optimizer has: a list of averages is one of them."""

from __future__ import annotations

import copy
from typing import Any

import torch
from support.host_state import carry, no_saves, take
from torch import nn

from torchrelay.shim.adapters.tensors.storages import is_freed
from torchrelay.shim.capture.models import device
from torchrelay.shim.capture.models.modules import ModuleTrees
from torchrelay.shim.capture.records import undo
from torchrelay.shim.capture.records.encode import decode, encode
from torchrelay.shim.capture.records.rebuild import StateRebuild
from torchrelay.shim.capture.state.filled_queues import FilledQueues
from torchrelay.shim.capture.state.process_settings import ProcessSettings
from torchrelay.shim.capture.walks.rewalk import Rewalk

LARGE = 20_000


def with_average(size: int = 4) -> dict[str, Any]:
    model = nn.Linear(size, 1)
    parameters = list(model.parameters())
    return {"average": copy.deepcopy(parameters), "parameters": parameters, "model": model}


def test_a_new_process_gets_their_content() -> None:
    source, target = with_average(), with_average()
    there = target["average"][0]
    carry(source, target)
    assert target["average"][0] is there
    assert torch.equal(there, source["average"][0])


def test_one_that_training_has_made_is_made_as_a_parameter() -> None:
    source: dict[str, Any] = {
        "kept": [nn.Parameter(torch.tensor([1.0, 2.0])), nn.Parameter(torch.ones(1), requires_grad=False)]
    }
    target: dict[str, Any] = {"kept": []}
    carry(source, target)
    assert [type(p) for p in target["kept"]] == [nn.Parameter, nn.Parameter]
    assert [p.requires_grad for p in target["kept"]] == [True, False]
    assert target["kept"][0].tolist() == [1.0, 2.0]


def test_a_rewind_puts_their_content_back() -> None:
    namespace = with_average()
    then = namespace["average"][0].tolist()
    state = take(namespace)
    namespace["average"][0].detach().mul_(2)
    undo.undo(state)
    assert namespace["average"][0].tolist() == then


def test_large_ones_come_from_a_rank_that_holds_the_same() -> None:
    namespace = with_average(LARGE)
    state = take(namespace)
    found = device.catalogue(state, state.roots)
    assert [path for path in found if path.startswith("value.")] == ["value.script.average[0]"]
    assert found["value.script.average[0]"].data_ptr() == namespace["average"][0].data_ptr()


def test_a_large_one_that_training_has_made_is_made_with_its_flag() -> None:
    source: dict[str, Any] = {"kept": [nn.Parameter(torch.ones(LARGE))]}
    target: dict[str, Any] = {"kept": []}
    carry(source, target)
    assert type(target["kept"][0]) is nn.Parameter
    assert target["kept"][0].requires_grad


def test_those_of_models_and_optimizers_are_left_to_them() -> None:
    """Though the script leads to them before it leads to their owner."""
    alone = nn.Parameter(torch.ones(2))
    model = nn.Linear(2, 1)
    namespace = {
        "first": [*model.parameters(), alone],
        "holder": {"model": model, "optimizer": torch.optim.SGD([alone], 0.1)},
    }
    state = take(namespace)
    assert not any(id(p) in state.index for p in namespace["first"])  # type: ignore[union-attr]


def test_one_that_shares_a_models_memory_follows_it() -> None:
    def made() -> dict[str, Any]:
        model = nn.Linear(3, 1)
        return {"model": model, "half": [nn.Parameter(model.weight.data)]}

    source, target = made(), made()
    carry(source, target)
    assert target["half"][0].data_ptr() == target["model"].weight.data_ptr()


def test_one_whose_memory_a_wrapper_has_let_go_of_is_left_alone() -> None:
    gone = nn.Parameter(torch.ones(LARGE))
    gone.untyped_storage().resize_(0)
    assert is_freed(gone)
    state = take({"old": [gone]})
    assert id(gone) not in state.index
    assert not state.large


def test_a_walk_that_goes_on_from_another_one_sees_those_that_came_since() -> None:
    namespace: dict[str, Any] = {"kept": [nn.Parameter(torch.ones(2))], "model": nn.Linear(2, 1)}
    trees = ModuleTrees()
    before = take(namespace, trees)
    namespace["kept"][0] = nn.Parameter(torch.tensor([3.0, 4.0]))
    namespace["kept"].append(namespace["model"].weight)
    after = Rewalk(trees, before, at_gate=False).run([], {"script": namespace})
    assert id(namespace["kept"][0]) in after.index
    assert id(namespace["model"].weight) not in after.index


class Points:
    """As gaussian splatting has them: an optimizer has the parameters, and no model."""

    def __init__(self, count: int) -> None:
        self.places, self.sizes = (nn.Parameter(torch.randn(count, 2)) for _ in range(2))
        groups = [{"params": [self.places], "lr": 0.1}, {"params": [self.sizes], "lr": 0.2}]
        self.optimizer = torch.optim.Adam(groups)


def test_those_of_an_optimizer_are_the_same_for_whoever_else_holds_them() -> None:
    target = {"points": Points(4)}
    carry({"points": Points(9)}, target)
    points = target["points"]
    assert [g["params"][0].shape[0] for g in points.optimizer.param_groups] == [9, 9]
    assert points.optimizer.param_groups[0]["params"][0] is points.places
    assert points.optimizer.param_groups[1]["params"][0] is points.sizes


def test_one_that_two_optimizers_share_is_one() -> None:
    def made(count: int) -> dict[str, Any]:
        shared = nn.Parameter(torch.randn(count))
        return {"first": torch.optim.SGD([shared], 0.1), "second": torch.optim.SGD([shared], 0.2)}

    target = made(2)
    carry(made(3), target)
    first, second = (target[name].param_groups[0]["params"][0] for name in ("first", "second"))
    assert first is second
    assert first.shape == (3,)


def test_a_parameter_that_is_exchanged_in_its_group_is_noticed() -> None:
    """In the list that the group has: nothing else of it changes."""
    points = Points(4)
    namespace = {"points": points}
    trees = ModuleTrees()
    state = take(namespace, trees)
    for is_exchanged in (False, False, True):
        encode(state)
        if is_exchanged:
            points.sizes = nn.Parameter(torch.randn(6, 2))
            points.optimizer.param_groups[1]["params"][0] = points.sizes
        state = Rewalk(trees, state, at_gate=False).run([], {"script": namespace})
    target = {"points": Points(4)}
    rebuild = StateRebuild([], {"script": target}, no_saves, settings=ProcessSettings(), queues=FilledQueues())
    rebuild.resolve(decode(encode(state)))
    rebuild.fill()
    assert target["points"].sizes.shape == (6, 2)
    assert target["points"].optimizer.param_groups[1]["params"][0] is target["points"].sizes
