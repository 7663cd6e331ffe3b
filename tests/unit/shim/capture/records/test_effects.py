"""What has changed between two walks, told by the ways that lead to it, and put into another process."""

from __future__ import annotations

import collections
from collections.abc import Callable
from typing import Any

import pytest
import torch
from support.host_state import take

from torchrelay.shim.capture.models.modules import ModuleTrees
from torchrelay.shim.capture.records import effects, encode
from torchrelay.shim.capture.records.effects import Effect, Way
from torchrelay.shim.capture.state.host_state import HostState
from torchrelay.shim.capture.values import small
from torchrelay.shim.capture.values.long_list import LONG
from torchrelay.shim.capture.values.small import TensorValue
from torchrelay.shim.capture.walks.rewalk import Rewalk


class Holder:
    def __init__(self, **named: Any) -> None:
        self.__dict__.update(named)


def namespace() -> dict[str, Any]:
    model = torch.nn.BatchNorm1d(2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    optimizer.state[model.weight] = {"count": 3}
    return {
        "number": 1.0,
        "holder": Holder(seen=(1, 2.0), momentum=torch.zeros(3)),
        "by_name": {"a": 1, 2: "b"},
        "norms": [1.0, 2.0],
        "latest": collections.deque([1], maxlen=4),
        "long": [*range(LONG)],
        "model": model,
        "optimizer": optimizer,
    }


def train(names: dict[str, Any]) -> None:
    names["number"] = -0.0
    names["holder"].seen = (1, float("nan"))
    names["holder"].momentum.add_(1)
    names["by_name"]["a"] = 2
    names["norms"].append(3.0)
    names["latest"].append(2)
    names["long"].append(0.5)
    names["model"].running_mean.add_(1)
    names["model"].momentum = 0.5
    names["optimizer"].param_groups[0]["lr"] = 0.2
    names["optimizer"].state[names["model"].weight]["count"] = 7


def changed(names: dict[str, Any]) -> tuple[HostState, HostState]:
    trees = ModuleTrees()
    then = take(names, trees)
    train(names)
    return then, take(names, trees)


def test_each_change_is_told_with_what_was_there_before() -> None:
    found = effects.effects(*changed(namespace()))
    named = {path.rpartition(".")[2]: effect._replace(number=-1) for (_, path), effect in found.items()}
    assert named["number"] == Effect((1.0,), (-0.0,))
    assert named["norms"] == Effect(([1.0, 2.0],), ([1.0, 2.0, 3.0],))
    assert named["by_name['a']"] == Effect((1,), (2,))
    assert len(found) == 11, found


def test_walks_that_go_on_from_one_boundary_tell_the_same() -> None:
    names, trees = namespace(), ModuleTrees()
    base = take(names, trees)
    encode.encode(base)
    states = []
    for change in (lambda: None, lambda: names["norms"].append(3.0)):
        change()
        states.append(Rewalk(trees, base, at_gate=True).run([], {"script": names}))
        encode.encode(states[-1])
    assert all(state.takes_over for state in states)
    ((way, effect),) = effects.effects(*states).items()
    assert (way[1], effect[:2]) == ("script.norms", (([1.0, 2.0],), ([1.0, 2.0, 3.0],)))


def test_what_another_process_had_alike_is_alike_after_the_same_changes_are_put_there() -> None:
    found = effects.effects(*changed(namespace()))
    other = namespace()
    put_all(take(other), found)
    model, optimizer, holder = other["model"], other["optimizer"], other["holder"]
    assert (str(other["number"]), str(holder.seen), holder.momentum.tolist()) == ("-0.0", "(1, nan)", [1, 1, 1])
    assert (other["by_name"], other["norms"], [*other["latest"]]) == ({"a": 2, 2: "b"}, [1.0, 2.0, 3.0], [1, 2])
    assert other["long"] == [*range(LONG), 0.5]
    assert (model.running_mean.tolist(), model.momentum) == ([1.0, 1.0], 0.5)
    assert (optimizer.param_groups[0]["lr"], optimizer.state[model.weight]) == (0.2, {"count": 7})


def put_all(state: HostState, found: dict[Way, Effect]) -> None:
    places = effects.leaves(state, range(len(state.nodes)))
    for way, effect in found.items():
        effects.put(state, places[way], effect.after[0])


def test_no_key_of_the_script_is_taken_for_another_thing() -> None:
    names = {"by_name": {"whole": 1, "other": 2}}
    then = take(names)
    names["by_name"]["whole"] = 5
    found = effects.effects(then, take(names))
    assert [path for _, path in found] == ["script.by_name['whole']"]
    other = {"by_name": {"whole": 1, "other": 2}}
    put_all(take(other), found)
    assert other == {"by_name": {"whole": 5, "other": 2}}


def test_several_values_of_one_object_stay_put_together() -> None:
    names = {"holder": Holder(a=1, b=2)}
    state = take(names)
    places = effects.leaves(state, range(len(state.nodes)))
    for (_, path), leaf in places.items():
        if path.endswith(("a", "b")):
            effects.put(state, leaf, 5)
    assert vars(names["holder"]) == {"a": 5, "b": 5}


def test_a_tensor_in_the_place_of_another_is_known_by_the_place() -> None:
    names = {"holder": Holder(momentum=torch.zeros(3))}
    then = take(names)
    names["holder"].momentum = torch.ones(3)
    (effect,) = effects.effects(then, take(names)).values()
    assert effect.before[0].data != effect.after[0].data


def test_what_is_made_or_goes_away_has_nothing_on_the_other_side() -> None:
    names: dict[str, Any] = {"by_name": {"old": 1}}
    then = take(names)
    names["by_name"].clear()
    names["by_name"]["new"] = 2
    found = effects.effects(then, take(names)).values()
    assert sorted(effect[:2] for effect in found) == [((), (2,)), ((1,), ())]


def test_large_tensors_are_told_elsewhere() -> None:
    names = {"large": torch.zeros(100_000)}
    then = take(names)
    names["large"].add_(1)
    assert effects.effects(then, take(names)) == {}


@pytest.mark.parametrize(
    ("before", "after", "counts"),
    [((1,), (2,), True), ((1,), (3,), False), ((1.0,), (2.0,), False), ((), (1,), False), ((False,), (True,), False)],
)
def test_counting_is_adding_one_to_a_whole_number(before: Any, after: Any, counts: bool) -> None:
    assert effects.is_counter(Effect(before, after)) is counts


def small_tensor(*values: float) -> TensorValue:
    return small.take(torch.tensor(values))


@pytest.mark.parametrize(
    ("before", "after", "computed"),
    [
        ((1.0,), (2.0,), True),
        ((1,), (2,), False),
        ((), (True,), False),
        ((), (1.5,), False),
        ((1.5,), (), False),
        ((), (small_tensor(0, 0, 0),), True),
        ((small_tensor(0, 0),), (small_tensor(1, 1),), True),
    ],
)
def test_marks_and_counts_are_not_computed(before: tuple[Any, ...], after: tuple[Any, ...], computed: bool) -> None:
    assert effects.may_be_computed(Effect(before, after)) is computed


@pytest.mark.parametrize(
    ("before", "after", "is_one"),
    [
        ((), (1.5,), True),
        ((), (small_tensor(0, 0, 0),), True),
        ((), (small_tensor(1),), True),
        ((), (small_tensor(0, 1, 0),), False),
        ((1.0,), (1.5,), False),
        ((small_tensor(0, 0),), (small_tensor(1, 1),), False),
    ],
)
def test_a_first_value_says_nothing_unless_it_is_a_tensor_of_different_numbers(
    before: tuple[Any, ...], after: tuple[Any, ...], is_one: bool
) -> None:
    assert effects.is_first_value(Effect(before, after)) is is_one


class Unspeakable:
    def __repr__(self) -> str:
        raise RuntimeError("asked for its words")


@pytest.mark.parametrize("make_key", [Unspeakable, object, lambda: torch.nn.Parameter(torch.randn(2))])
def test_keys_that_are_objects_are_told_by_their_places(make_key: Callable[[], Any]) -> None:
    """Each process has others, and what a parameter holds is another thing behind each update."""

    def ways() -> set[Way]:
        seen = {make_key(): 0.0, make_key(): 1.0}
        names, trees = {"seen": seen}, ModuleTrees()
        then = take(names, trees)
        for key in seen:
            if isinstance(key, torch.nn.Parameter):
                key.data.add_(1)
            seen[key] += 1.0
        now = take(names, trees)
        found = effects.effects(then, now)
        assert {effect.after for effect in found.values()} >= {(1.0,), (2.0,)}
        counted = next(way for way, effect in found.items() if effect.after == (1.0,))
        effects.put(now, effects.leaves(now, range(len(now.nodes)))[counted], 5.0)
        assert 5.0 in seen.values()
        return {*found}

    assert ways() == ways()
