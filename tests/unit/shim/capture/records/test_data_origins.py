"""Loaders and data sets that training makes: a new process makes them, whatever it has under their names."""

from __future__ import annotations

import gc
import pickle
import weakref
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from support.host_state import no_saves, take
from torch.utils.data import ConcatDataset, DataLoader, Dataset, SequentialSampler, Subset

from torchrelay.protocol.errors import StateMismatchError
from torchrelay.shim.capture.handlers.data import DataForm
from torchrelay.shim.capture.iteration import data_changes
from torchrelay.shim.capture.iteration.loader_order import made_by
from torchrelay.shim.capture.models.modules import ModuleTrees
from torchrelay.shim.capture.records import encode
from torchrelay.shim.capture.records.rebuild import StateRebuild
from torchrelay.shim.capture.state.data_origins import DataOrigins, Maker
from torchrelay.shim.capture.state.filled_queues import FilledQueues
from torchrelay.shim.capture.state.host_state import HostState
from torchrelay.shim.capture.state.process_settings import ProcessSettings
from torchrelay.shim.capture.walks.rewalk import Rewalk
from torchrelay.shim.join.put_state import stands_for_made
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
    made_by(iterator, loader)
    return iterator


def seen(names: Names, trees: ModuleTrees) -> HostState:
    """Of a later boundary, with what the journal has of it."""
    trees.data_origins.fresh_is_made = True
    state = take(names, trees)
    encode.encode(state)
    return state


def lost(train: Callable[[Names], None]) -> tuple[Names, HostState]:
    names, trees = set_up(), ModuleTrees()
    take(names, trees)
    train(names)
    return names, seen(names, trees)


def join(state: HostState, target: Names) -> DataOrigins:
    """What is noted there of data."""
    made = DataOrigins()
    rebuild = StateRebuild(
        [],
        {"script": target},
        no_saves,
        settings=ProcessSettings(),
        queues=FilledQueues(),
        was_made=lambda obj, form: made.has_made(obj),
    )
    rebuild.resolve(encode.decode(pickle.loads(pickle.dumps([*state.written]))))
    rebuild.fill()
    rebuild.check_complete()
    for obj, form in rebuild.data():
        made.take_over(obj, Maker(form.maker), form.seen_at, form.place, form.number)
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
def test_data_of_training_is_made_and_that_of_set_up_stays_as_it_is(train: Callable[[Names], None]) -> None:
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
    trees.data_origins = join(state, target)
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


@pytest.mark.parametrize("is_much", [False, True])
def test_one_whose_sampler_draws_from_data_that_is_not_carried_is_not_called_whole(is_much: bool) -> None:
    def trained(names: Names) -> None:
        fresh_data(names)
        order = Numbers(0)
        if is_much:
            order.much = torch.zeros(1 << 20)  # type: ignore[attr-defined]  # a script may give it anything
        sampler = SequentialSampler(order)
        names["loader"] = DataLoader(names["data"], batch_size=1, sampler=sampler)
        names["it"] = drawn_from(names["loader"])

    names, state = lost(trained)
    assert MadeLoaders().can_be_made(state, names["loader"]) is not is_much


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


def made_by_an_iteration(make: Callable[[], Dataset[Any]]) -> tuple[Names, HostState]:
    """What the journal has where the next iteration of an outer loop begins."""
    names, trees = set_up(), ModuleTrees()
    names["more"] = None
    made = trees.data_origins
    take(names, trees)
    mark = made.mark
    names["more"] = DataLoader(make(), batch_size=2)
    before = take(names, trees)
    encode.encode(before)
    made.goes_on(mark)
    made.fresh_is_made = True
    state = Rewalk(trees, before, at_gate=False).run([], {"script": names})
    encode.encode(state)
    return names, state


def test_what_an_earlier_iteration_has_made_is_made_in_a_new_process() -> None:
    _, state = made_by_an_iteration(lambda: Numbers(100))
    target = {**set_up(), "more": DataLoader(Numbers(7), batch_size=2)}
    join(state, target)
    assert [*map(str, target["more"])] == ["tensor([100, 101])", "tensor([102, 103])"]
    assert [*map(str, target["loader"])] == ["tensor([1, 2])", "tensor([3, 4])"]


class Viewed(Numbers):
    def __init__(self) -> None:
        super().__init__(100)
        self.view = memoryview(bytearray(4))


class Many(Numbers):
    def __init__(self) -> None:
        super().__init__(100)
        self.names = [*map(str, range(100_000))]


class Wide(Numbers):
    def __init__(self) -> None:
        super().__init__(100)
        self.table = torch.zeros(1 << 20)


class Texts(Numbers):
    def __init__(self) -> None:
        super().__init__(100)
        self.texts = [b"0" * 30_000] * 100


class Transformed(Numbers):
    def __init__(self) -> None:
        super().__init__(100)
        self.transform = set_up


def test_a_function_that_each_process_can_import_is_little() -> None:
    _, state = made_by_an_iteration(Transformed)
    target: Names = {**set_up(), "more": None}
    join(state, target)
    assert target["more"].dataset.transform is set_up


@pytest.mark.parametrize("make", [Viewed, Many, Wide, Texts])
def test_what_is_much_or_cannot_be_written_is_left_to_the_new_process(make: Callable[[], Dataset[Any]]) -> None:
    _, state = made_by_an_iteration(make)
    assert not state.unknown
    target: Names = {**set_up(), "more": None}
    join(state, target)
    assert target["more"] is None
    of_set_up: Names = {**set_up(), "more": DataLoader(Numbers(7), batch_size=2)}
    with pytest.raises(StateMismatchError, match="'more'"):
        join(state, of_set_up)


def test_only_what_was_first_seen_behind_a_head_is_made_by_its_iteration() -> None:
    made, before, behind = DataOrigins(), Numbers(1), Numbers(2)
    made.note([before], Maker.EACH_PROCESS)
    mark = made.mark
    made.note([behind], Maker.EACH_PROCESS)
    made.goes_on(mark)
    assert [made.maker(data) for data in (before, behind)] == [Maker.EACH_PROCESS, Maker.ITERATION]


def test_where_an_iteration_was_begun_what_it_has_made_stands_for_that_of_the_lost_rank() -> None:
    made, of_set_up, fresh = DataOrigins(), Numbers(1), Numbers(2)
    made.note([of_set_up], Maker.EACH_PROCESS)
    innermost, outer = SimpleNamespace(data_mark=-1), SimpleNamespace(data_mark=1)
    for around, stands in ([[], [False, False]], [[outer], [False, True]]):
        stands_for = stands_for_made(made, [*around, innermost])
        form = DataForm(Maker.ITERATION, 1, 1, (), ("numbers",))
        assert [stands_for(data, form) for data in (of_set_up, fresh)] == stands
        form = form._replace(maker=Maker.STEP)
        assert not stands_for(fresh, form), "nothing tells what a step has put into its own"
        assert stands_for(fresh, form._replace(content={"numbers": b"digest"})) == stands[1]


def test_a_process_that_takes_over_goes_on_in_the_order_of_the_lost_rank() -> None:
    """Set-up's data was seen late there, and what its present iteration has made later still."""
    origins, of_set_up, of_iteration, fresh = DataOrigins(), Numbers(1), Numbers(2), Numbers(3)
    origins.take_over(of_set_up, Maker.EACH_PROCESS, 300, (), 7)
    mark = origins.mark
    origins.take_over(of_iteration, Maker.EACH_PROCESS, 301)
    origins.note([fresh], Maker.EACH_PROCESS)
    origins.number_rest()
    origins.goes_on(mark)
    makers = [origins.maker(data) for data in (of_set_up, of_iteration, fresh)]
    assert makers == [Maker.EACH_PROCESS, Maker.ITERATION, Maker.ITERATION]
    assert len({origins.origin(data).number for data in (of_set_up, of_iteration, fresh)}) == 3
