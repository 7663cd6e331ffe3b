"""Hooks of modules go back with the step that registers or removes them, and no others."""

from __future__ import annotations

import pickle
from collections import OrderedDict
from typing import Any

import pytest
from support.host_state import carry, differences, journal, take
from torch import nn
from torch.utils.hooks import RemovableHandle

from torchrelay.protocol.errors import StateMismatchError
from torchrelay.shim.adapters.parallel.module_hooks import Hooks
from torchrelay.shim.capture.models.modules import ModuleTrees
from torchrelay.shim.capture.records import encode, undo
from torchrelay.shim.capture.records.set_up_trees import begin_set_up
from torchrelay.shim.capture.state.change_detection import WalkAnew
from torchrelay.shim.capture.walks.rewalk import Rewalk


def note(*_: Any) -> None:
    pass


def other(*_: Any) -> None:
    pass


def hooks_of(module: nn.Module) -> list[Any]:
    return [*module._forward_hooks.values()]


def boundary(model: nn.Module, trees: ModuleTrees) -> Any:
    state = take({"model": model}, trees)
    trees.at_boundary()
    return state


def test_a_hook_of_an_earlier_step_stays_where_a_step_goes_back() -> None:
    model = nn.Sequential(nn.Linear(2, 2))
    trees = ModuleTrees()
    boundary(model, trees)
    model[0].register_forward_hook(note)
    state = boundary(model, trees)
    model[0].register_forward_hook(other)
    undo.undo(state)
    assert hooks_of(model[0]) == [note]


def test_a_hook_that_a_step_removes_is_there_again() -> None:
    model = nn.Sequential(nn.Linear(2, 2))
    first = model[0].register_forward_hook(note, with_kwargs=True)
    model[0].register_forward_hook(other)
    state = boundary(model, ModuleTrees())
    first.remove()
    undo.undo(state)
    assert hooks_of(model[0]) == [note, other]
    assert model[0]._forward_hooks_with_kwargs == {first.id: True}
    first.remove()
    assert hooks_of(model[0]) == [other]


def test_each_change_is_seen_at_once() -> None:
    module = nn.Linear(2, 2)
    hooks = Hooks([module])
    assert hooks.are_same()
    handle = module.register_forward_hook(note)
    assert not hooks.are_same()
    hooks = Hooks([module])
    handle.remove()
    assert not hooks.are_same()
    handle = module.register_forward_hook(note)
    hooks = Hooks([module])
    handle.remove()
    module.register_forward_hook(other)
    assert not hooks.are_same()


def test_hooks_of_other_things_and_of_torch_are_no_change() -> None:
    module = nn.Linear(2, 2)
    hooks = Hooks([module])
    RemovableHandle(OrderedDict())
    assert hooks.are_same()
    module.register_forward_pre_hook(nn.Module.float)
    assert hooks.are_same()


def test_a_new_process_without_a_hook_of_training_is_refused_and_it_is_told_before() -> None:
    model = nn.Sequential(nn.Linear(2, 2))
    trees = ModuleTrees()
    begin_set_up(take({"model": model}, trees))
    model[0].register_forward_hook(note)
    state = take({"model": model}, trees)
    assert state.nodes[2].content.tree.hooks_of_training() == ["0"]
    with pytest.raises(StateMismatchError, match="registered some"):
        carry({"model": model}, {"model": nn.Sequential(nn.Linear(2, 2))})


def test_a_hook_that_training_has_removed_is_a_difference() -> None:
    here = nn.Sequential(nn.Linear(2, 2))
    here[0].register_forward_hook(note)
    found = differences(
        *(encode.decode(pickle.loads(journal({"model": m}))) for m in (nn.Sequential(nn.Linear(2, 2)), here))
    )
    assert [(difference.path, difference.was, difference.now) for difference in found] == [
        ("script.model['0']._forward_hooks", "of 0 hooks", "of 1")
    ]


def test_what_a_step_registers_is_not_looked_at_at_its_gate() -> None:
    model = nn.Sequential(nn.Linear(2, 2))
    names = {"model": model}
    trees = ModuleTrees()
    state = take(names, trees)
    model[0].register_forward_hook(note)
    at_gate = Rewalk(trees, state, at_gate=True).run([], {"script": names})
    assert at_gate.nodes[2].content.tree is state.nodes[2].content.tree
    with pytest.raises(WalkAnew):
        Rewalk(trees, state, at_gate=False).run([], {"script": names})
