"""Weights that make room for an average while that is evaluated, and come back: what a joiner may read, and what it may keep."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from support.host_state import take

from torchrelay.protocol.errors import StateMismatchError
from torchrelay.shim.capture.models import device
from torchrelay.shim.join.catch_up import CatchUp

Names = dict[str, Any]
LARGE = 20_000


@pytest.fixture
def names() -> Names:
    return {"model": torch.nn.Linear(LARGE, 1, bias=False), "average": torch.full((1, LARGE), 3.0)}


@pytest.fixture
def read() -> list[float]:
    return []


def go_through(
    names: Names, late: dict[str, int], act: Callable[[], Any], *, gradients_late: bool = False, at_head: bool = True
) -> None:
    state = take(names)
    gradients = device.gradients(state)
    missing = frozenset(gradients if gradients_late else ())
    tail = CatchUp(device.whole(state, state.roots), late, gradients, missing, at_head=at_head)
    try:
        act()
    finally:
        tail.leave()
    tail.check(take(names))


def put_aside(weight: torch.Tensor) -> torch.Tensor:
    return weight.clone()


def put_aside_detached(weight: torch.Tensor) -> torch.Tensor:
    return weight.detach().cpu().clone()


def put_aside_deep(weight: torch.Tensor) -> torch.Tensor:
    return copy.deepcopy(weight.data)


def put_aside_in_other_memory(weight: torch.Tensor) -> torch.Tensor:
    return torch.empty_like(weight).copy_(weight)


def put_aside_each(weight: torch.Tensor) -> torch.Tensor:
    memory = [torch.empty_like(weight)]
    torch._foreach_copy_(memory, [weight])
    return memory[0]


@torch.no_grad()
def swap(names: Names, aside: Callable[[torch.Tensor], torch.Tensor], between: Callable[[], None]) -> None:
    weight = names["model"].weight
    kept = aside(weight)
    weight.data.copy_(names["average"].data)
    between()
    weight.data.copy_(kept.data)


@pytest.mark.parametrize(
    "aside", [put_aside, put_aside_detached, put_aside_deep, put_aside_in_other_memory, put_aside_each]
)
def test_the_average_is_read_in_place_of_the_weights_and_they_are_read_when_they_are_back(
    names: Names, aside: Any, read: list[float]
) -> None:
    weight = names["model"].weight
    before = weight.sum().item()

    def act() -> None:
        swap(names, aside, lambda: read.append(names["model"](torch.ones(1, LARGE)).item()))
        read.append(weight.sum().item())

    go_through(names, {}, act)
    assert read == [3.0 * LARGE, before]


def test_an_average_that_was_written_before_is_the_donors(names: Names, read: list[float]) -> None:
    def act() -> None:
        names["average"].mul_(0.5)
        swap(names, put_aside, lambda: read.append(names["model"].weight.sum().item()))

    go_through(names, {"value.script.average": 1}, act)
    assert read == [3.0 * LARGE]


def test_both_may_change_places(names: Names, read: list[float]) -> None:
    def change_places() -> None:
        average, weight = names["average"], names["model"].weight
        kept = average.data.clone()
        average.data.copy_(weight.data)
        weight.data.copy_(kept)

    def act() -> None:
        names["average"].mul_(0.5)
        change_places()
        read.append(names["model"].weight.sum().item())
        change_places()
        read.append(names["average"].sum().item())

    go_through(names, {"value.script.average": 1}, act)
    assert read == [3.0 * LARGE, 3.0 * LARGE]


def test_writes_that_torch_counts_are_followed_alike(names: Names, read: list[float]) -> None:
    def act() -> None:
        model = names["model"]
        kept = {name: tensor.clone() for name, tensor in model.state_dict().items()}
        model.load_state_dict({"weight": names["average"]})
        read.append(model.weight.sum().item())
        model.load_state_dict(kept)
        names["kept"] = kept["weight"].sum()

    go_through(names, {"module0.weight": 2}, act)
    assert read == [3.0 * LARGE]


def test_what_was_put_aside_may_be_kept_once_it_is_back(names: Names) -> None:
    def act() -> None:
        names["aside"] = names["model"].weight.detach().clone()
        names["model"].weight.data.copy_(names["average"])
        names["model"].weight.data.copy_(names["aside"])

    go_through(names, {}, act)


def test_where_the_donor_stands_between_the_two_what_was_put_aside_is_not_known(names: Names) -> None:
    def act() -> None:
        names["aside"] = names["model"].weight.detach().clone()
        names["model"].weight.data.copy_(names["average"])

    with pytest.raises(StateMismatchError, match=r"keeps in .*aside what it computed from module0.weight"):
        go_through(names, {}, act)


def test_where_the_donor_stands_in_a_collective_a_number_of_what_was_put_aside_is_not_read(names: Names) -> None:
    read: list[float] = []

    def act() -> None:
        aside = names["model"].weight.detach().clone()
        names["model"].weight.data.copy_(names["average"])
        read.append(aside.sum().item())

    with pytest.raises(StateMismatchError, match=r"reads module0.weight"):
        go_through(names, {}, act, at_head=False)
    assert read == []


def test_a_number_of_weights_that_do_not_come_back_is_not_known(names: Names, read: list[float]) -> None:
    def act() -> None:
        read.append(names["model"].weight.sum().item())
        names["model"].weight.data.copy_(names["average"])

    with pytest.raises(StateMismatchError, match=r"reads module0.weight"):
        go_through(names, {}, act)


@pytest.mark.parametrize(
    "spoil",
    [
        lambda kept: kept.add_(1.0),
        lambda kept: kept.data[0, 7].fill_(1.0),
        lambda kept: kept.copy_(kept * 2),
        lambda kept: kept.view(-1)[: LARGE // 2].copy_(kept.view(-1)[LARGE // 2 :]),
    ],
)
def test_a_copy_that_was_changed_is_no_copy(names: Names, spoil: Any) -> None:
    def act() -> None:
        kept = names["model"].weight.detach().clone()
        number = names["model"].weight.sum().item()
        names["model"].weight.data.copy_(names["average"])
        spoil(kept)
        names["model"].weight.data.copy_(kept)
        names["number"] = number

    with pytest.raises(StateMismatchError, match=r"reads module0.weight"):
        go_through(names, {}, act)


def test_a_part_that_comes_back_is_not_all(names: Names) -> None:
    def act() -> None:
        kept = names["model"].weight.detach().clone()
        names["model"].weight.data.copy_(names["average"])
        names["model"].weight.data[0, :5].copy_(kept[0, :5])
        names["model"].weight.data.sum().item()

    with pytest.raises(StateMismatchError, match=r"reads module0.weight"):
        go_through(names, {}, act)


def test_a_copy_in_another_precision_is_none(names: Names) -> None:
    def act() -> None:
        kept = names["model"].weight.detach().double()
        names["model"].weight.data.copy_(names["average"])
        names["model"].weight.data.copy_(kept)
        names["model"].weight.sum().item()

    with pytest.raises(StateMismatchError, match=r"reads module0.weight"):
        go_through(names, {}, act)


def test_a_gradient_that_is_not_this_ranks_stays_unknown_when_it_comes_back(names: Names) -> None:
    names["model"].weight.grad = torch.ones_like(names["model"].weight)

    def act() -> None:
        gradient = names["model"].weight.grad
        kept = gradient.clone()
        gradient.zero_()
        gradient.copy_(kept)
        gradient.sum().item()

    with pytest.raises(StateMismatchError, match="reads gradients"):
        go_through(names, {}, act, gradients_late=True)


def test_of_an_average_that_is_written_twice_nothing_is_known_before_the_second_write(names: Names) -> None:
    def act() -> None:
        names["average"].mul_(0.5)
        kept = names["average"].clone()
        names["average"].copy_(kept)
        kept.sum().item()

    with pytest.raises(StateMismatchError, match=r"reads value.script.average"):
        go_through(names, {"value.script.average": 2}, act)


def saved_average(names: Names) -> None:
    average = names["average"]
    average.data.copy_(average * 0.5 + names["model"].weight * 0.5)
    average.sum().item()


def saved_average_by_way_of_another(names: Names) -> None:
    between = names["average"] * 0.5
    names["average"].data.copy_(between)
    names["average"].sum().item()


@pytest.mark.parametrize("act", [saved_average, saved_average_by_way_of_another])
def test_an_average_that_is_overwritten_with_what_was_computed_from_it_is_not_read(names: Names, act: Any) -> None:
    read: list[bool] = []

    def then() -> None:
        act(names)
        read.append(True)

    with pytest.raises(StateMismatchError, match=r"reads value.script.average"):
        go_through(names, {}, then)
    assert read == []


def test_what_is_overwritten_with_numbers_is_known(names: Names, read: list[float]) -> None:
    def act() -> None:
        names["average"].data.zero_()
        names["average"].data.fill_(2.0)
        read.append(names["average"].sum().item())

    go_through(names, {}, act)
    assert read == [2.0 * LARGE]


def test_a_number_that_is_a_tensor_is_followed(names: Names) -> None:
    def act() -> None:
        names["average"].data.fill_(names["average"].sum())
        names["average"].sum().item()

    with pytest.raises(StateMismatchError, match=r"reads value.script.average"):
        go_through(names, {}, act)


def test_small_averages_that_no_other_rank_gives_take_the_place_of_the_weights(names: Names, read: list[float]) -> None:
    own = torch.full((1, LARGE), 4.0)  # as what the journal has by value

    def act() -> None:
        swap(names, put_aside, lambda: read.append(names["model"].weight.sum().item()))

    names["average"] = own
    state = take({"model": names["model"]})
    tail = CatchUp(device.whole(state, state.roots), {}, {}, frozenset(), at_head=True)
    try:
        act()
    finally:
        tail.leave()
    tail.check(take({"model": names["model"]}))
    assert read == [4.0 * LARGE]


def test_a_recorded_result_is_known_and_what_was_read_before_it_is_not(names: Names, read: list[float]) -> None:
    def act(*, before: bool) -> None:
        if before:
            names["before"] = names["average"].sum()
        names["average"].data.fill_(5.0)  # as a collective does that is answered from a record
        watch.certain([names["average"].data])
        read.append(names["average"].sum().item())

    for before in (False, True):
        names["average"] = torch.full((1, LARGE), 5.0)
        state = take(names)
        tail = CatchUp(device.whole(state, state.roots), {}, {}, frozenset(), at_head=True)
        watch = tail.watch
        try:
            act(before=before)
        finally:
            tail.leave()
        if before:
            with pytest.raises(StateMismatchError, match=r"keeps in .*before what it computed"):
                tail.check(take(names))
        else:
            tail.check(take(names))
    assert read == [5.0 * LARGE, 5.0 * LARGE]


def test_what_other_memory_held_before_it_was_overwritten_does_not_count(names: Names, read: list[float]) -> None:
    memory = torch.zeros(1, LARGE)

    def act() -> None:
        memory.copy_(names["average"])
        names["average"].data.mul_(0.5)
        memory.copy_(torch.ones(1, LARGE))
        read.append(memory.sum().item())
        memory[0, :5].copy_(names["average"][0, :5])
        memory.sum().item()

    with pytest.raises(StateMismatchError, match=r"reads value.script.average"):
        go_through(names, {}, act)
    assert read == [1.0 * LARGE]


def test_only_this_rank_has_put_the_average_in_place(names: Names, read: list[float]) -> None:
    def act() -> None:
        model = names["model"]
        kept = model.weight.detach().clone()
        model.load_state_dict({"weight": names["average"]})
        read.append(model.weight.sum().item())
        model.load_state_dict({"weight": kept})

    go_through(names, {"module0.weight": 0}, act)
    assert read == [3.0 * LARGE]


def test_only_this_rank_has_written(names: Names) -> None:
    def act() -> None:
        names["model"].load_state_dict({"weight": names["average"]})

    with pytest.raises(StateMismatchError, match="written 1 times since the optimizer step, and 0 times by the donor"):
        go_through(names, {"module0.weight": 0}, act)
