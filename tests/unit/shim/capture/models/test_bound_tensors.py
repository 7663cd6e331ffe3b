"""Parameters and buffers that training binds anew: `self.center = self.center * 0.9 + ...`."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from support.host_state import carry, journal, take
from torch import nn

from torchrelay.protocol.errors import StateMismatchError
from torchrelay.shim.capture.models import device
from torchrelay.shim.capture.models.modules import ModuleTrees
from torchrelay.shim.capture.records import encode, set_up_trees, undo
from torchrelay.shim.capture.values.kinds import Kind
from torchrelay.shim.capture.walks.rewalk import Rewalk

LARGE = 40_000


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(2, 2)
        self.head = nn.Linear(2, 2)
        self.register_buffer("center", torch.zeros(1, 2))
        self.register_buffer("queue", torch.zeros(LARGE))
        self.register_buffer("later", None)


def bindings(model: nn.Module) -> dict[str, Any]:
    return {f"{name}.{k}": v for name, m in model.named_modules() for k, v in {**m._buffers, **m._parameters}.items()}


def test_a_survivor_gets_the_tensors_back_that_were_bound_at_the_boundary() -> None:
    model = Model()
    before = bindings(model)
    state = take({"model": model})
    model.center = model.center * 0.9 + 1
    model.queue = model.queue + 1
    model.later = torch.ones(3)
    model.layer.weight = nn.Parameter(torch.ones(2, 2))
    model.layer.bias = None
    undo.undo(state)
    after = bindings(model)
    assert list(after) == list(before)
    assert all(after[name] is tensor for name, tensor in before.items())
    assert model.center.tolist() == [[0.0, 0.0]]


def test_parts_names_and_hooks_of_a_step_are_taken_back() -> None:
    model = Model()
    head, calls = model.head, []
    state = take({"model": model})
    model.head = nn.Linear(2, 5)
    model.layer.extra = nn.ReLU()
    model.layer.register_buffer("mask", torch.ones(2))
    model.layer.register_forward_hook(lambda *_: calls.append(1))
    undo.undo(state)
    assert model.head is head
    assert [name for name, _ in model.named_modules()] == ["", "layer", "head"]
    assert "mask" not in model.layer._buffers
    model.layer(torch.zeros(1, 2))
    assert calls == []


def test_frozen_parameters_are_frozen_again() -> None:
    model = Model()
    model.layer.requires_grad_(False)
    state = take({"model": model})
    model.layer.requires_grad_(True)
    undo.undo(state)
    assert [p.requires_grad for p in model.parameters()] == [False, False, True, True]


def test_a_large_buffer_that_was_written_before_it_was_bound_anew_is_refused() -> None:
    model = Model()
    state = take({"model": model})
    model.queue.add_(1)
    model.queue = torch.zeros(LARGE)
    with pytest.raises(StateMismatchError, match="queue"):
        undo.undo(state)


def test_a_buffer_that_was_resized_gets_its_form_back() -> None:
    model = Model()
    state = take({"model": model})
    center = model.center
    center.resize_(4, 4).fill_(1)
    undo.undo(state)
    assert model.center is center
    assert center.tolist() == [[0.0, 0.0]]


def test_a_new_process_binds_tensors_of_the_recorded_forms() -> None:
    source, target = Model(), Model()
    kept = target.center
    source.center = source.center + 1
    source.queue = torch.ones(3, LARGE, dtype=torch.float64)
    source.later = torch.ones(3)
    source.head.weight = source.layer.weight
    source.layer.bias = None
    source.layer.weight.requires_grad_(False)
    carry({"model": source}, {"model": target})
    assert target.center is kept
    assert target.center.tolist() == [[1.0, 1.0]]
    assert (tuple(target.queue.shape), target.queue.dtype) == ((3, LARGE), torch.float64)
    assert target.later.tolist() == [1.0, 1.0, 1.0]
    assert target.head.weight is target.layer.weight
    assert target.layer.bias is None
    assert not target.layer.weight.requires_grad
    assert target.head.bias.requires_grad


def test_hooks_that_training_has_registered_are_refused_in_a_new_process() -> None:
    source = Model()
    source.layer.register_forward_hook(lambda *_: None)
    with pytest.raises(StateMismatchError, match="layer has 1 of _forward_hooks"):
        carry({"model": source}, {"model": Model()})


def test_the_journal_tells_forms_that_are_not_those_of_the_set_up() -> None:
    model, trees = Model(), ModuleTrees()
    namespace = {"model": model}
    state = take(namespace, trees)
    set_up_trees.begin_set_up(state)
    model.center = model.center + 1
    model.later = torch.ones(3)
    now = Rewalk(trees, state, at_gate=False).run([], {"script": namespace})
    (content,) = [n.content for n in encode.decode(encode.encode(now)) if n.kind.name == "MODULE"]
    assert [place[2] for place in content[5]] == ["later"]
    assert sorted(content[3]) == ["center", "later"]


def test_the_journal_tells_the_form_of_a_buffer_that_was_resized_in_place() -> None:
    """As observers of quantization do in their first forward pass."""
    model, trees = Model(), ModuleTrees()
    namespace = {"model": model}
    state = take(namespace, trees)
    set_up_trees.begin_set_up(state)
    model.center.resize_(4, 4).fill_(1)
    now = Rewalk(trees, state, at_gate=False).run([], {"script": namespace})
    (content,) = [n.content for n in encode.decode(encode.encode(now)) if n.kind.name == "MODULE"]
    assert [(place[2], form.shape) for place, form in content[5].items()] == [("center", (4, 4))]


def test_a_large_buffer_that_a_step_binds_anew_is_told_to_a_walk_that_goes_on() -> None:
    model, trees = Model(), ModuleTrees()
    namespace = {"model": model}
    state = Rewalk(trees, take(namespace, trees), at_gate=False).run([], {"script": namespace})
    model.queue = model.queue + 1
    then = model.queue
    now = Rewalk(trees, state, at_gate=False).run([], {"script": namespace})
    model.queue = model.queue + 1
    undo.undo(now)
    assert model.queue is then
    model.queue.add_(1)
    with pytest.raises(StateMismatchError, match="queue"):
        undo.undo(now)


def test_journals_are_as_long_whatever_tensor_is_bound() -> None:
    model = Model()
    first = len(journal({"model": model}))
    model.center = model.center + 1
    assert len(journal({"model": model})) == first


def test_a_donor_in_the_midst_of_a_step_gives_the_tensors_of_its_boundary() -> None:
    model = Model()
    state = take({"model": model})
    then = {"module0.queue": model.queue, "module0.layer.weight": model.layer.weight}
    model.queue = model.queue + 1
    model.layer.weight = nn.Parameter(torch.ones(2, 2))
    served = device.whole(state, state.roots, as_taken=True)
    assert all(served[path] is tensor for path, tensor in then.items())
    now = device.whole(state, state.roots)
    assert now["module0.queue"] is model.queue
    assert served.keys() == now.keys()


def test_a_walk_that_goes_on_sees_that_a_parameter_was_given_memory_in_other_strides() -> None:
    model = nn.Conv2d(64, 128, 1, bias=False).to(memory_format=torch.channels_last).requires_grad_(False)
    namespace, trees = {"model": model}, ModuleTrees()
    state = take(namespace, trees)
    assert model.weight.stride() == (64, 1, 64, 64)
    model.weight.data = torch.zeros(128, 64, 1, 1)  # as a sum of two weights may come out
    later = Rewalk(trees, state, at_gate=False).run([], {"script": namespace})
    forms = [node.content.forms for node in later.nodes if node.kind is Kind.MODULE]
    assert [form.strides for form in forms[0] if form is not None] == [()]
