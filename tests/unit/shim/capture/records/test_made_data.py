"""Loaders and data sets that training makes: a new process makes them, whatever it has under their names."""

from __future__ import annotations

import gc
import pickle
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch
from support.host_state import no_saves, take
from torch.utils.data import ConcatDataset, DataLoader, Dataset, Subset

from torchrelay.protocol.errors import StateMismatchError
from torchrelay.shim.capture.iteration import data_changes
from torchrelay.shim.capture.iteration.loader_order import LOADER_OF
from torchrelay.shim.capture.models.modules import ModuleTrees
from torchrelay.shim.capture.records import encode
from torchrelay.shim.capture.records.rebuild import StateRebuild
from torchrelay.shim.capture.state.host_state import HostState
from torchrelay.shim.capture.state.made_data import MadeData
from torchrelay.shim.journal.made_loaders import MadeLoaders

Names = dict[str, Any]


class Numbers(Dataset[Any]):
    transform = None

    def __init__(self, first: int) -> None:
        self.numbers = [first + number for number in range(4)]

    def __len__(self) -> int:
        return len(self.numbers)

    def __getitem__(self, place: int) -> int:
        return self.numbers[place]


class Tabled(DataLoader[Any]):
    table: Any = None


class Holder:
    def __init__(self, **values: Any) -> None:
        self.__dict__.update(values)


class Negative:
    def __init__(self, factor: int) -> None:
        self.factor = {"by": factor}

    def __call__(self, items: list[int]) -> list[int]:
        return [self.factor["by"] * item for item in items]


def set_up() -> Names:
    data = Numbers(1)
    return {"data": data, "loader": DataLoader(data, batch_size=2), "it": None, "train": DataLoader(data, batch_size=1)}


def drawn_from(loader: DataLoader[Any]) -> Any:
    iterator = iter(loader)
    LOADER_OF[iterator] = loader
    return iterator


def seen(names: Names, trees: ModuleTrees) -> HostState:
    """Of a later boundary, with what the journal has of it."""
    trees.made_data.fresh_is_made = True
    state = take(names, trees)
    encode.encode(state)
    return state


def lost(train: Callable[[Names], None]) -> tuple[Names, HostState]:
    names, trees = set_up(), ModuleTrees()
    take(names, trees)
    train(names)
    return names, seen(names, trees)


def join(state: HostState, target: Names) -> MadeData:
    """What is noted there of data."""
    made = MadeData()
    rebuild = StateRebuild([], {"script": target}, no_saves, was_made=made.has_made)
    rebuild.resolve(encode.decode(pickle.loads(pickle.dumps([*state.written]))))
    rebuild.fill()
    rebuild.check_complete()
    for obj, is_made in rebuild.data():
        made.note((obj,), made=is_made)
    return made


def other_collate(names: Names) -> None:
    names["loader"] = DataLoader(names["data"], batch_size=2, collate_fn=Negative(-3))


def single_items(names: Names) -> None:
    names["loader"] = DataLoader(names["data"], batch_size=None)


def part(names: Names) -> None:
    names["loader"] = DataLoader(Subset(names["data"], [3, 1]), batch_size=2)


def own_class(names: Names) -> None:
    loader = Tabled(names["data"], batch_size=2)
    loader.table = {"a": [1, 2]}
    names["loader"] = loader


def fresh_data(names: Names) -> None:
    names["data"] = Numbers(100)
    names["loader"] = DataLoader(names["data"], batch_size=2)


@pytest.mark.parametrize("train", [other_collate, single_items, part, own_class, fresh_data])
def test_it_is_made_and_set_ups_stay_as_they_are(train: Callable[[Names], None]) -> None:
    def trained(names: Names) -> None:
        train(names)
        names["it"] = drawn_from(names["loader"])

    names, state = lost(trained)
    assert MadeLoaders().can_be_made(state, names["loader"])
    target = set_up()
    of_set_up, data = target["train"], target["data"]
    join(state, target)
    assert [*map(str, target["loader"])] == [*map(str, names["loader"])]
    assert type(target["loader"]) is type(names["loader"])
    assert vars(target["loader"]).get("table") == vars(names["loader"]).get("table")
    assert target["train"] is of_set_up
    assert target["train"].dataset is data
    assert data.numbers == [1, 2, 3, 4]


def test_what_a_process_has_made_for_another_one_it_hands_on_as_made() -> None:
    def trained(names: Names) -> None:
        fresh_data(names)
        names["it"] = drawn_from(names["loader"])

    names, state = lost(trained)
    target = set_up()
    trees = ModuleTrees()
    trees.made_data = join(state, target)
    target["it"] = drawn_from(target["loader"])  # as it is led
    third = set_up()
    join(seen(target, trees), third)
    assert [*map(str, third["loader"])] == [*map(str, names["loader"])]
    assert [*map(str, third["train"])] == [*map(str, names["train"])]


def test_one_whose_data_was_met_first_is_not_called_whole_before_it_is() -> None:
    holder = Holder(data=None, loader=None, it=None)
    names: Names = {"holder": holder}
    trees = ModuleTrees()
    take(names, trees)
    holder.data = Numbers(7)
    holder.loader = DataLoader(holder.data)
    holder.it = drawn_from(holder.loader)
    state = seen(names, trees)
    target: Names = {"holder": Holder(data=None, loader=None, it=None)}
    if MadeLoaders().can_be_made(state, holder.loader):
        join(state, target)
        assert target["holder"].data.numbers == holder.data.numbers
    assert MadeLoaders().can_be_made(seen(names, trees), holder.loader)


def test_what_is_there_at_a_loops_first_head_this_process_makes_by_itself() -> None:
    names, trees = set_up(), ModuleTrees()
    take(names, trees)
    fresh_data(names)
    names["it"] = drawn_from(names["loader"])
    state = take(names, trees)
    encode.encode(state)
    target = set_up()
    fresh_data(target)
    loader = target["loader"]
    join(state, target)
    assert target["loader"] is loader


def test_one_with_a_part_that_is_not_carried_is_not_called_whole() -> None:
    def trained(names: Names) -> None:
        fresh_data(names)
        names["data"].view = memoryview(bytearray(4))
        names["it"] = drawn_from(names["loader"])

    names, state = lost(trained)
    assert not MadeLoaders().can_be_made(state, names["loader"])
    target = set_up()
    with pytest.raises(StateMismatchError, match="cannot be made again"):
        join(state, target)
    assert target["data"].numbers == [1, 2, 3, 4]
    assert torch.stack([*target["train"]]).flatten().tolist() == [1, 2, 3, 4]


def cycle(loader: Any) -> Any:
    while True:
        yield from loader


def test_a_generator_of_training_has_the_loader_that_it_was_given() -> None:
    def trained(names: Names) -> None:
        names["it"] = cycle(DataLoader(names["data"], batch_size=2, collate_fn=Negative(-1)))

    _, state = lost(trained)
    target = set_up()
    join(state, target)
    assert next(target["it"]) == [-1, -2]


def test_parts_of_a_data_set_of_set_ups_are_set_ups_also_where_they_are_met_late() -> None:
    names: Names = {"data": ConcatDataset([Numbers(1), Numbers(10)])}
    trees = ModuleTrees()
    take(names, trees)
    data_changes.carry(names["data"], ["datasets"])  # as where training has changed it
    names["data"].datasets.pop()
    state = seen(names, trees)
    target: Names = {"data": ConcatDataset([Numbers(1), Numbers(10)])}
    join(state, target)
    assert [part.numbers[0] for part in target["data"].datasets] == [1]


def test_where_it_cannot_be_made_and_set_ups_stands_in_its_place_the_process_is_refused() -> None:
    def trained(names: Names) -> None:
        data = Numbers(100)
        data.view = memoryview(bytearray(4))  # type: ignore[attr-defined]  # what no process can make
        names["loader"] = DataLoader(data)

    _, state = lost(trained)
    with pytest.raises(StateMismatchError, match="made by training, and cannot be made again: 'loader'"):
        join(state, set_up())


def test_where_set_up_has_nothing_in_its_place_a_process_goes_on_without_it() -> None:
    """As without a loader that was made for one evaluation."""

    def trained(names: Names) -> None:
        data = Numbers(100)
        data.view = memoryview(bytearray(4))  # type: ignore[attr-defined]  # what no process can make
        names["it"] = DataLoader(data)

    _, state = lost(trained)
    target = set_up()
    join(state, target)
    assert target["it"] is None


def test_a_loaders_data_is_not_kept_alive() -> None:
    names, trees = set_up(), ModuleTrees()
    take(names, trees)
    held = Held([1, 2])
    names["it"] = drawn_from(DataLoader([held]))
    seen(names, trees)
    there = weakref.ref(held)
    names["it"] = held = None
    gc.collect()
    assert there() is None


class Held(list[int]):
    """A list that can be told of when it is gone."""
