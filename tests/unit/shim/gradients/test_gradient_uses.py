"""Gradients that a step uses before it drops them are told from those that it clears."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

from torchrelay.shim.adapters import dynamo
from torchrelay.shim.gradients.gradient_uses import GradientUses


@pytest.fixture
def model() -> torch.nn.Linear:
    made = torch.nn.Linear(3, 2)
    made(torch.ones(1, 3)).sum().backward()
    return made


@pytest.fixture
def used() -> list[str]:
    return []


@pytest.fixture
def uses(used: list[str]) -> Iterator[GradientUses]:
    made = GradientUses(used.append)
    yield made
    made.only([])
    assert torch.overrides._get_current_function_mode_stack() == []


def gradients(model: torch.nn.Linear) -> dict[str, torch.Tensor]:
    return {name: p.grad for name, p in model.named_parameters() if p.grad is not None}


def norm(model: torch.nn.Linear) -> None:
    assert model.weight.grad is not None
    model.weight.grad.norm().item()


def part_of_data(model: torch.nn.Linear) -> None:
    assert model.bias.grad is not None
    _ = model.bias.grad.data[0] + 1


def to_a_logger(model: torch.nn.Linear) -> None:
    assert model.weight.grad is not None
    model.weight.grad.numpy()


def into_another(model: torch.nn.Linear) -> None:
    assert model.weight.grad is not None
    torch.empty(2, 3).copy_(model.weight.grad)


def scaled_by_the_other(model: torch.nn.Linear) -> None:
    assert model.weight.grad is not None
    assert model.bias.grad is not None
    model.weight.grad.mul_(model.bias.grad[0])


def views(model: torch.nn.Linear) -> None:
    """As a wrapper does that keeps its gradients in one flat tensor."""
    assert model.weight.grad is not None
    flat = model.weight.grad.detach().view(-1)
    model.weight.grad = flat[:3].view(1, 3).expand(2, 3)
    torch.split(flat, 3)
    flat.untyped_storage().size()


def clip(model: torch.nn.Linear) -> None:
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)


def zero_by_hand(model: torch.nn.Linear) -> None:
    for p in model.parameters():
        if p.grad is not None:
            assert p.grad.shape == p.shape
            p.grad.detach_()
            p.grad.zero_()


def times_zero(model: torch.nn.Linear) -> None:
    for p in model.parameters():
        assert p.grad is not None
        p.grad *= 0


def optimizer_zeroes(model: torch.nn.Linear) -> None:
    torch.optim.SGD(model.parameters(), lr=0.1).zero_grad(set_to_none=False)


def drop_and_compute(model: torch.nn.Linear) -> None:
    """What comes next may get the memory of what was dropped."""
    sizes = [p.shape for p in model.parameters()]
    model.zero_grad()
    for _ in range(8):
        [torch.ones(size).add(1).sum() for size in sizes]


@pytest.mark.parametrize(
    ("act", "found"),
    [
        (norm, {"weight"}),
        (part_of_data, {"bias"}),
        (to_a_logger, {"weight"}),
        (into_another, {"weight"}),
        (scaled_by_the_other, {"bias"}),
        (clip, {"weight", "bias"}),
        (views, set()),
        (zero_by_hand, set()),
        (times_zero, set()),
        (optimizer_zeroes, set()),
        (drop_and_compute, set()),
    ],
)
def test_what_is_computed_from_is_used_and_what_is_cleared_is_not(
    act: Callable[[torch.nn.Linear], None],
    found: set[str],
    model: torch.nn.Linear,
    uses: GradientUses,
    used: list[str],
) -> None:
    uses.begin(gradients(model))
    act(model)
    assert sorted(used) == sorted(found)


def test_what_is_known_of_already_is_not_followed(model: torch.nn.Linear, uses: GradientUses, used: list[str]) -> None:
    uses.begin(gradients(model))
    uses.only(["bias"])
    clip(model)
    assert used == ["bias"]


def test_each_is_followed_twice_to_its_end(model: torch.nn.Linear, uses: GradientUses, used: list[str]) -> None:
    for _ in range(2):
        uses.begin(gradients(model))
        uses.only(["bias"])
    uses.begin(gradients(model))
    clip(model)
    assert used == ["bias"]


def test_steps_that_end_nothing_are_followed_only_so_long(
    model: torch.nn.Linear, uses: GradientUses, used: list[str]
) -> None:
    for _ in range(17):
        uses.begin(gradients(model))
    clip(model)
    assert used == []


def test_nothing_is_followed_where_code_was_compiled(
    model: torch.nn.Linear, uses: GradientUses, used: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dynamo, "compilations", lambda: 1)
    uses.begin(gradients(model))
    clip(model)
    assert used == []


def test_the_watch_ends_beneath_modes_that_the_script_has_begun_in_the_meantime(
    model: torch.nn.Linear, uses: GradientUses, used: list[str]
) -> None:
    uses.begin(gradients(model))
    with torch.device("meta"):
        uses.only([])
        assert torch.ones(1).is_meta
        clip(model)
    assert used == []


def test_the_watch_may_end_within_a_call_that_it_is_told_of(
    model: torch.nn.Linear, uses: GradientUses, used: list[str]
) -> None:
    class Ends(torch.Tensor):
        @classmethod
        def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            uses.end()
            return 0

    uses.begin(gradients(model))
    assert torch.ones(1).as_subclass(Ends).sum() == 0  # type: ignore[no-untyped-call]  # torch does not say its type
    clip(model)
    assert used == []


def test_code_that_is_compiled_for_the_first_time_meanwhile_is_compiled_as_without(
    model: torch.nn.Linear, uses: GradientUses, used: list[str]
) -> None:
    graphs: list[str] = []

    def backend(graph: Any, inputs: Any) -> Any:
        graphs.append(graph.code)
        return graph.forward

    doubled = torch.compile(lambda x: torch.sum(torch.sin(torch.mul(x, 2))), backend=backend, fullgraph=True)
    uses.begin(gradients(model))
    followed = doubled(torch.ones(3))
    norm(model)
    assert used == ["weight"]
    uses.end()
    assert torch.equal(doubled(torch.ones(3)), followed)
    assert len({*graphs}) == 1
