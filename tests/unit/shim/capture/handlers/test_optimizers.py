"""What optimizers keep in their state beside the named tensors of each parameter."""

from __future__ import annotations

from typing import Any

import torch
from support.host_state import carry, differences, take

from torchrelay.shim.capture.models import device
from torchrelay.shim.capture.models.modules import ModuleTrees
from torchrelay.shim.capture.records import effects, encode
from torchrelay.shim.capture.values.kinds import Kind
from torchrelay.shim.capture.walks.rewalk import Rewalk


class Momentum:
    def __init__(self, parameter: torch.Tensor) -> None:
        self.average = torch.zeros_like(parameter)
        self.steps = 0


def script(*, steps: int) -> dict[str, Any]:
    """A model and its optimizer after so many steps."""
    model = torch.nn.Linear(3, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    if steps:
        optimizer.state["steps"] = steps
        optimizer.state["shared"] = {"norms": [0.5] * steps, "factor": torch.full((2,), float(steps))}
        optimizer.state[id(model.weight)] = {"old": torch.full((2, 3), float(steps))}
        optimizer.state[model.bias] = Momentum(model.bias)
        optimizer.state[model.bias].average += steps
        optimizer.state[model.bias].steps = steps
    return {"model": model, "optimizer": optimizer}


def test_what_stands_under_other_keys_than_parameters_comes_over() -> None:
    for begun in (0, 1):
        target = script(steps=begun)
        carry(script(steps=3), target)
        model, state = target["model"], target["optimizer"].state
        assert state["steps"] == 3
        assert state["shared"]["norms"] == [0.5] * 3
        assert state["shared"]["factor"].tolist() == [3.0, 3.0]
        assert {key for key in state if type(key) is int} == {id(model.weight)}
        assert state[id(model.weight)]["old"].tolist() == [[3.0] * 3] * 2
        assert state[model.bias].average.tolist() == [3.0, 3.0]
        assert state[model.bias].steps == 3


def test_two_processes_with_the_same_state_are_alike() -> None:
    states = [encode.decode(encode.encode(take(script(steps=3)))) for _ in range(2)]
    assert not [d for d in differences(*states) if "model" not in d.path]
    other = encode.decode(encode.encode(take(script(steps=4))))
    found = [difference.path for difference in differences(states[0], other)]
    assert any("norms" in path for path in found)
    assert any("average" in path for path in found)


def test_a_walk_that_goes_on_sees_what_changes_there() -> None:
    namespace = script(steps=3)
    trees = ModuleTrees()
    state = take(namespace, trees)
    encode.encode(state)
    namespace["optimizer"].state["steps"] = 4
    namespace["optimizer"].state["shared"]["norms"].append(0.1)
    now = Rewalk(trees, state, at_gate=False).run([], {"script": namespace})
    found = [effect.after for effect in effects.effects(state, now).values()]
    assert found == [(4,), ([0.5, 0.5, 0.5, 0.1],)]


def test_a_value_of_another_rank_is_put_in_its_place() -> None:
    namespace = script(steps=3)
    state = take(namespace)
    number = next(number for number, node in enumerate(state.nodes) if node.kind is Kind.OPTIMIZER_STATE)
    leaf = next(leaf for leaf in effects.leaves(state, [number]).values() if leaf.value == 3)
    effects.put(state, leaf, 5)
    assert namespace["optimizer"].state["steps"] == 5


def test_the_catalogue_has_the_tensors_of_parameters_alone() -> None:
    namespace = script(steps=3)
    namespace["optimizer"].state[namespace["model"].bias] = {"average": torch.zeros(2)}
    state = take(namespace)
    assert [*device.optimizer_tensors(state)] == ["optimizer0.1.average"]
    assert device.not_rebuilt(state) == []
