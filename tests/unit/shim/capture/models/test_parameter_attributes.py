"""Attributes of parameters are state like other attributes: put back with a step, and carried to another process."""

from __future__ import annotations

from typing import Any

import torch
from support.host_state import carry, take

from torchrelay.shim.capture.models.modules import ModuleTrees
from torchrelay.shim.capture.records import undo
from torchrelay.shim.capture.walks.rewalk import Rewalk

LARGE = torch.zeros(20_000)


def model() -> torch.nn.Module:
    return torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.Linear(2, 2))


def marked(steps: int, momentum: float) -> torch.nn.Module:
    made = model()
    made[1].weight.steps, made[1].weight.momentum = steps, torch.full((2, 2), momentum)  # type: ignore[index, union-attr]
    return made


def test_another_process_has_them_whether_set_up_had_made_them_or_not() -> None:
    for target in (model(), marked(0, 0.0)):
        carry({"model": marked(3, 0.5)}, {"model": target})
        weight: Any = target[1].weight  # type: ignore[index]
        assert weight.steps == 3
        assert weight.momentum.tolist() == [[0.5, 0.5], [0.5, 0.5]]


def test_what_the_other_process_has_beside_them_goes() -> None:
    target = marked(0, 0.0)
    target[1].weight.other = 1  # type: ignore[index, union-attr]
    carry({"model": marked(3, 0.5)}, {"model": target})
    assert not hasattr(target[1].weight, "other")  # type: ignore[index]


def test_a_step_that_is_done_again_finds_what_there_was() -> None:
    source = marked(3, 0.5)
    weight: Any = source[1].weight  # type: ignore[index]
    momentum = weight.momentum
    state = take({"model": source})
    weight.steps, weight.new = 4, True
    momentum.add_(1)
    weight.momentum = None
    undo.undo(state)
    assert vars(weight) == {"steps": 3, "momentum": momentum}
    assert momentum.tolist() == [[0.5, 0.5], [0.5, 0.5]]


def test_large_tensors_are_known_by_where_they_stand_like_those_of_other_objects() -> None:
    source = model()
    source[0].bias.main_grad = LARGE  # type: ignore[index, union-attr]
    (path,) = take({"model": source}).large
    assert "bias" in path
    assert "main_grad" in path


def test_a_later_walk_sees_the_first_attribute_of_a_parameter_and_the_loss_of_its_last() -> None:
    trees, namespace = ModuleTrees(), {"model": model()}
    weight: Any = namespace["model"][1].weight
    states = [take(namespace, trees)]

    def walk() -> list[str]:
        states.append(Rewalk(trees, states[-1], at_gate=False).run([], {"script": namespace}))
        state = states[-1]
        return [state.path(n) for n, node in enumerate(state.nodes) if node.obj is vars(weight)]

    assert walk() == []
    weight.steps = 1
    assert len(walk()) == 1
    weight.steps = 2
    assert len(walk()) == 1
    assert states[-1].nodes[states[-1].index[id(vars(weight))]].content == {"steps": 2}
    del weight.steps
    assert walk() == []


def test_two_names_of_one_parameter_have_one_set_of_attributes() -> None:
    source = model()
    source[0].weight = source[1].weight  # type: ignore[index, assignment]
    source[1].weight.steps = 1  # type: ignore[index, union-attr]
    state = take({"model": source})
    assert sum(node.obj is vars(source[1].weight) for node in state.nodes) == 1  # type: ignore[index]


def test_what_a_tensor_of_another_class_keeps_there_is_its_own_affair() -> None:
    class Quantized(torch.nn.Parameter):
        pass

    source = torch.nn.Linear(2, 2)
    source.weight = Quantized(torch.zeros(2, 2))
    source.weight.scale = [1]  # type: ignore[assignment]
    assert not any(node.obj is vars(source.weight) for node in take({"model": source}).nodes)
