from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from support.host_state import take

from torchrelay.protocol.errors import StateMismatchError
from torchrelay.shim.step.repeated_step import RepeatedStep

Names = dict[str, Any]


@pytest.fixture
def names() -> Names:
    return {
        "model": torch.nn.Linear(300, 300),
        "average": torch.zeros(20_000),
        "small": torch.zeros(2),
        "batch": torch.ones(300, 300),
    }


@pytest.fixture
def again(names: Names) -> Iterator[RepeatedStep]:
    watched = {name: value for name, value in names.items() if name != "batch"}
    done_again = RepeatedStep()
    done_again.begin(take(watched))
    yield done_again
    if "data" in vars(torch.Tensor):
        del torch.Tensor.data


def in_the_middle(names: Names) -> None:
    names["average"].detach().data.view(100, 200)[3][4].fill_(1.0)


@pytest.mark.parametrize(
    ("act", "path"),
    [
        pytest.param(lambda n: n["average"].data.mul_(0.5), "script.average", id="in place"),
        pytest.param(in_the_middle, "script.average", id="through views of an alias"),
        pytest.param(lambda n: n["average"].data.data.zero_(), "script.average", id="through an alias of an alias"),
        pytest.param(lambda n: setattr(n["average"], "data", torch.ones(20_000)), "script.average", id="by assignment"),
        pytest.param(lambda n: n["model"].weight.data.clamp_(0, 1), "weight", id="a parameter"),
        pytest.param(lambda n: torch._foreach_mul_([n["model"].weight.data], 2.0), "weight", id="many at once"),
        pytest.param(lambda n: torch.add(n["model"].weight, 1, out=n["model"].weight.data), "weight", id="out"),
    ],
)
def test_a_large_tensor_must_not_be_written_past_torchs_count(
    names: Names, again: RepeatedStep, act: Callable[[Names], Any], path: str
) -> None:
    with torch.no_grad():
        act(names)
    for _ in range(2):
        with pytest.raises(StateMismatchError, match=rf"done again.*: {path}$"):
            again.leave()


def test_an_all_reduce_into_a_large_tensor_is_a_write(names: Names, again: RepeatedStep) -> None:
    again.summed_up([names["average"][:10]])
    with pytest.raises(StateMismatchError, match=r"script\.average"):
        again.leave()


def test_reading_and_what_is_undone_anyway_are_free(names: Names, again: RepeatedStep) -> None:
    assert names["average"].data.sum().item() == 0
    names["model"](names["batch"]).sum().backward()
    names["model"].weight.grad.data.zero_()
    names["small"].data.add_(1)
    names["batch"].data.mul_(2)
    again.summed_up([names["small"], names["model"].weight.grad])
    again.leave()


def test_nothing_is_to_be_seen_of_it_but_in_a_step_that_is_done_again(names: Names) -> None:
    plain = torch.Tensor.data
    again = RepeatedStep()
    again.leave()
    again.summed_up([names["average"]])
    again.begin(take(names))
    assert torch.Tensor.data is not plain
    again.leave()
    assert torch.Tensor.data is plain
    assert "data" not in vars(torch.Tensor)


def test_code_that_was_compiled_before_runs_as_it_is() -> None:
    """A recompilation may round differently."""
    graphs = []

    def backend(module: Any, example: Any) -> Any:
        graphs.append(module)
        return module.forward

    average = torch.zeros(20_000)
    compiled = torch.compile(lambda x: (x.data * 2 + average.data).sum(), backend=backend)
    x = torch.ones(20_000)
    first = compiled(x)
    done_again = RepeatedStep()
    done_again.begin(take({"average": average}))
    try:
        assert torch.equal(compiled(x), first)
        assert len(graphs) == 1
    finally:
        done_again.leave()
    assert torch.equal(compiled(x), first)
    assert len(graphs) == 1
