"""Hooks of modules go back with the step that registers or removes them, and no others."""

from __future__ import annotations

import pickle
from collections import OrderedDict
from typing import Any

import pytest
import torch
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


def set_up(*hooks: Any) -> tuple[nn.Sequential, ModuleTrees]:
    """Return a model as set-up has left it."""
    model = nn.Sequential(nn.Linear(2, 2))
    for hook in hooks:
        model[0].register_forward_hook(hook)
    trees = ModuleTrees()
    begin_set_up(take({"model": model}, trees))
    return model, trees


def counted(by: int) -> Any:
    """Return a hook with a variable of its own, as libraries make them."""

    def count(module: nn.Module, args: Any, output: torch.Tensor) -> torch.Tensor:
        return output + by

    return count


class Log:
    def __init__(self) -> None:
        self.seen = 0

    def note(self, *_: Any) -> None:
        self.seen += 1


def test_a_hook_of_training_is_registered_in_a_new_process_behind_those_of_set_up() -> None:
    model, trees = set_up(note)
    target = {"model": set_up(note)[0]}
    model[0].register_forward_hook(counted(3), always_call=True)
    carry({"model": model}, target, trees)
    first, second = hooks_of(target["model"][0])
    assert first is note
    assert second(None, None, torch.tensor(1.0)) == 4.0
    assert len(target["model"][0]._forward_hooks_always_called) == 1


def test_so_is_a_method_of_an_object() -> None:
    model, trees = set_up()
    target: dict[str, Any] = {"log": Log(), "model": set_up()[0]}
    source = {"log": Log(), "model": model}
    model[0].register_forward_hook(source["log"].note)
    carry(source, target, trees)
    target["model"](torch.zeros(1, 2))
    assert target["log"].seen == 1


def test_its_handle_removes_it_there() -> None:
    model, trees = set_up(note)
    target: dict[str, Any] = {"handle": None, "kept": [], "model": set_up(note)[0]}
    handle = model[0].register_forward_hook(counted(3), with_kwargs=True)
    carry({"handle": handle, "kept": [handle], "model": model}, target, trees)
    assert len(hooks_of(target["model"][0])) == 2
    target["handle"].remove()
    assert hooks_of(target["model"][0]) == [note]
    assert target["model"][0]._forward_hooks_with_kwargs == {}
    assert len(target["kept"]) == 1


def test_hooks_stand_in_the_order_that_training_has_given_them() -> None:
    model, trees = set_up(note)
    target = {"model": set_up(note)[0]}
    model[0].register_forward_hook(counted(3), prepend=True)
    carry({"model": model}, target, trees)
    first, second = hooks_of(target["model"][0])
    assert first(None, None, torch.tensor(1.0)) == 4.0
    assert second is note


def test_one_of_set_up_that_training_has_exchanged_is_exchanged() -> None:
    model, trees = set_up(note)
    target = {"model": set_up(note)[0]}
    model[0]._forward_hooks.clear()
    model[0].register_forward_hook(counted(3))
    carry({"model": model}, target, trees)
    (only,) = hooks_of(target["model"][0])
    assert only(None, None, torch.tensor(1.0)) == 4.0


def test_one_of_set_up_that_training_has_removed_is_removed() -> None:
    model, trees = set_up(note)
    target = {"model": set_up(note)[0]}
    model[0]._forward_hooks.clear()
    here = ModuleTrees().made_hooks
    carry({"model": model}, target, trees, made_hooks=here)
    carry({"model": model}, target, trees, made_hooks=here)
    assert hooks_of(target["model"][0]) == [], "also where it is put a second time"


def test_an_inner_loop_may_register_more_behind_a_head_at_which_some_were_put() -> None:
    model, trees = set_up(note)
    target = {"model": set_up(note)[0]}
    here = ModuleTrees().made_hooks
    model[0].register_forward_hook(counted(3))
    carry({"model": model}, target, trees, made_hooks=here)
    model[0].register_forward_hook(other)
    carry({"model": model}, target, trees, made_hooks=here)
    first, second, third = hooks_of(target["model"][0])
    assert (first, second(None, None, torch.tensor(1.0)), third) == (note, 4.0, other)


def test_what_an_earlier_loop_has_exchanged_is_of_the_set_up_of_a_later_one() -> None:
    model, trees = set_up(note)
    target = {"model": set_up(note)[0]}
    here = ModuleTrees().made_hooks
    model[0]._forward_hooks.clear()
    model[0].register_forward_hook(other)
    carry({"model": model}, target, trees, made_hooks=here)
    here.loop_is_over()
    later = trees.anew()
    begin_set_up(take({"model": model}, later))
    model[0].register_forward_hook(counted(3))
    carry({"model": model}, target, later, made_hooks=here)
    first, second = hooks_of(target["model"][0])
    assert (first, second(None, None, torch.tensor(1.0))) == (other, 4.0)


def test_hooks_that_were_made_for_an_earlier_loop_are_of_the_set_up_of_a_later_one() -> None:
    model, trees = set_up(note)
    joined, own = set_up(note)
    model[0].register_forward_hook(counted(3))
    carry({"model": model}, {"model": joined}, trees, made_hooks=own.made_hooks)
    for known in ((note,), (note, hooks_of(joined[0])[1])):
        own = own.anew()
        begin_set_up(take({"model": joined}, own))
        found = own.tree(joined).hooks_of_set_up
        assert found is not None
        assert found["0", "_forward_hooks"] == known


def test_hooks_that_training_has_dropped_with_their_dictionary_are_removed() -> None:
    model, trees = set_up(note)
    target = {"model": set_up(note)[0]}
    names = {"model": model}
    state = take(names, trees)
    model[0]._forward_hooks = OrderedDict()
    with pytest.raises(WalkAnew):
        Rewalk(trees, state, at_gate=False).run([], {"script": names})
    carry(names, target, trees)
    assert hooks_of(target["model"][0]) == []


def test_hooks_of_the_backward_pass_are_of_the_same_kind() -> None:
    model, trees = set_up()
    target = {"log": Log(), "model": set_up()[0]}
    source = {"log": Log(), "model": model}
    model[0].register_full_backward_hook(source["log"].note)
    carry(source, target, trees)
    target["model"](torch.zeros(1, 2, requires_grad=True)).sum().backward()
    assert target["log"].seen == 1


def test_a_process_that_has_made_it_hands_it_on() -> None:
    model, trees = set_up()
    model[0].register_forward_hook(counted(3))
    target = {"model": nn.Sequential(nn.Linear(2, 2))}
    rebuild = carry({"model": model}, target, trees)
    later = ModuleTrees()
    later.made_hooks = rebuild.made_hooks
    begin_set_up(take(target, later))
    last = {"model": nn.Sequential(nn.Linear(2, 2))}
    carry(target, last, later)
    assert len(hooks_of(last["model"][0])) == 1


def test_one_that_cannot_be_made_again_is_refused_and_told_before() -> None:
    model, trees = set_up()
    model[0].register_forward_hook(eval("lambda *_: None"))
    state = take({"model": model}, trees)
    assert encode.Encoder(state).hooks_lost(state.nodes[2].content.tree) == ["0"]
    with pytest.raises(StateMismatchError, match="a hook of 0 cannot be made again"):
        carry({"model": model}, {"model": set_up()[0]}, trees)


def test_another_number_of_hooks_of_set_up_is_refused() -> None:
    model, trees = set_up(note)
    model[0].register_forward_hook(counted(3))
    with pytest.raises(StateMismatchError, match="had 1 of set-up's"):
        carry({"model": model}, {"model": set_up()[0]}, trees)


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
