"""Data sets and loaders that training has put elsewhere: a new process knows which of its own stands for which."""

from __future__ import annotations

import gc
import pickle
import weakref
from collections.abc import Callable
from typing import Any

import pytest
from support.host_state import no_saves, take
from torch.utils.data import ConcatDataset, DataLoader, Dataset, Subset

from torchrelay.shim.capture.iteration import data_places
from torchrelay.shim.capture.iteration.data_changes import DataChanges
from torchrelay.shim.capture.models.modules import ModuleTrees
from torchrelay.shim.capture.records import encode
from torchrelay.shim.capture.records.rebuild import StateRebuild
from torchrelay.shim.capture.records.recorded_data import RecordedData
from torchrelay.shim.capture.state.data_origins import DataOrigins, Maker
from torchrelay.shim.capture.state.filled_queues import FilledQueues
from torchrelay.shim.capture.state.host_state import HostState
from torchrelay.shim.capture.state.process_settings import ProcessSettings
from torchrelay.shim.capture.values.kinds import DATA, Kind
from torchrelay.shim.capture.values.replay_point import ABSENT

Names = dict[str, Any]


class Numbers(Dataset[Any]):
    def __init__(self, first: int) -> None:
        self.numbers = [first, first + 1]

    def __len__(self) -> int:
        return 2

    def __getitem__(self, place: int) -> int:
        return self.numbers[place]


class Holder:
    def __init__(self, **values: Any) -> None:
        self.__dict__.update(values)


def first(data: Any) -> int:
    return int((data.dataset if isinstance(data, DataLoader) else data)[0])


def stages() -> Names:
    loaders = [DataLoader(Numbers(10 * stage)) for stage in range(3)]
    return {"h": Holder(current=loaders[0], loaders=loaders)}


def next_stage(names: Names) -> None:
    names["h"].current = names["h"].loaders[1]


def of_stages(names: Names) -> list[int]:
    return [first(names["h"].current), *map(first, names["h"].loaders)]


def two() -> Names:
    return {"h": Holder(train=Numbers(1), validate=Numbers(20))}


def swapped(names: Names) -> None:
    h = names["h"]
    h.train, h.validate = h.validate, h.train


def concatenated() -> Names:
    return {"all": ConcatDataset([Numbers(1), Numbers(20)])}


def turned(names: Names) -> None:
    names["all"].datasets.reverse()


def pool() -> Names:
    data = [Numbers(10 * number) for number in range(3)]
    return {"pool": data, "current": data[0]}


def last_of_pool(names: Names) -> None:
    names["current"] = names["pool"][2]


def sorted_pool(names: Names) -> None:
    names["pool"].reverse()


def without_first(names: Names) -> None:
    del names["pool"][0]


def part() -> Names:
    levels = {"easy": Numbers(1), "hard": Numbers(20)}
    return {"levels": levels, "part": Subset(levels["easy"], [0])}


def harder(names: Names) -> None:
    names["part"].dataset = names["levels"]["hard"]


CASES = [
    (stages, next_stage, of_stages),
    (two, swapped, lambda names: [names["h"].train[0], names["h"].validate[0]]),
    (concatenated, turned, lambda names: [*names["all"]]),
    (pool, last_of_pool, lambda names: [first(names["current"]), *map(first, names["pool"])]),
    (pool, sorted_pool, lambda names: [first(names["current"]), *map(first, names["pool"])]),
    (pool, without_first, lambda names: [*map(first, names["pool"])]),
    (part, harder, lambda names: [*names["part"]]),
]


def trained(names: Names, train: Callable[[Names], None]) -> tuple[HostState, ModuleTrees]:
    trees, changes = ModuleTrees(), DataChanges()
    state = take(names, trees)
    data_places.settle(state, trees.data_origins, -1, is_known=True)
    changes.settle()
    data = [node.obj for node in state.nodes if node.kind in DATA]
    changes.look(data)
    train(names)
    changes.look(data)
    trees.data_origins.fresh_is_made = True
    state = take(names, trees)
    encode.encode(state)
    return state, trees


def rebuilt(state: HostState, target: Names, **known: Any) -> StateRebuild:
    rebuild = StateRebuild(
        [],
        {"script": target},
        no_saves,
        settings=ProcessSettings(),
        queues=FilledQueues(),
        was_made=lambda obj, form: False,
        **known,
    )
    rebuild.resolve(encode.decode(pickle.loads(pickle.dumps([*state.written]))))
    rebuild.fill()
    rebuild.check_complete()
    return rebuild


@pytest.mark.parametrize(("make", "train", "shown"), CASES, ids=[train.__name__ for _, train, _ in CASES])
def test_what_training_has_put_elsewhere_is_there_in_a_new_process(
    make: Callable[[], Names], train: Callable[[Names], None], shown: Callable[[Names], list[int]]
) -> None:
    names, target = make(), make()
    state, _ = trained(names, train)
    assert shown(target) != shown(names)
    rebuilt(state, target)
    assert shown(target) == shown(names)


def test_a_second_record_finds_them_where_the_first_has_put_them() -> None:
    """An outer loop's head comes first, then that of the loop in it: by then nothing is where set-up had it."""
    names, target = two(), two()
    at_head, trees = trained(names, swapped)
    swapped(names)
    known = {form.number: obj for obj, form in rebuilt(at_head, target).data()}
    state = take(names, trees)
    encode.encode(state)
    rebuilt(state, target, known_data=known)
    assert [target["h"].train[0], target["h"].validate[0]] == [1, 20]


def test_a_place_is_told_only_by_the_heads_that_were_looked_at() -> None:
    names, trees = two(), ModuleTrees()
    state = take(names, trees)
    train, origins = names["h"].train, trees.data_origins
    data_places.settle(state, origins, -1, is_known=False)
    assert origins.origin(train).place == ()
    data_places.settle(state, origins, -1, is_known=True)
    assert [key for _, key in origins.origin(train).place] == ["script", "h", "train"]
    known = origins.origin(train).place
    swapped(names)
    data_places.settle(take(names, trees), origins, origins.mark, is_known=True)  # of a loop within: its place stays
    assert origins.origin(train).place == known
    data_places.settle(
        take(names, trees), origins, -1, is_known=True
    )  # of a loop behind it: set-up goes on up to there
    assert [key for _, key in origins.origin(train).place] == ["script", "h", "validate"]


def test_what_training_has_made_has_no_place() -> None:
    names, trees = two(), ModuleTrees()
    take(names, trees)
    names["h"].more = Numbers(7)
    trees.data_origins.fresh_is_made = True
    data_places.settle(take(names, trees), trees.data_origins, -1, is_known=True)
    origin = trees.data_origins.origin(names["h"].more)
    assert (origin.maker, origin.place) == (Maker.STEP, ())


def test_a_rebuild_is_gone_once_nobody_needs_it() -> None:
    """It holds iterators: one that the script has dropped must not live on until the next collection."""
    state, _ = trained(two(), swapped)
    target = two()
    gc.disable()
    try:
        left = weakref.ref(rebuilt(state, target))
        assert left() is None
    finally:
        gc.enable()


def test_places_say_nothing_of_what_was_there_before_the_head_of_the_loop_around() -> None:
    """Behind that head other data can be in them."""
    state, _ = trained(two(), swapped)
    nodes, target = encode.decode(pickle.loads(pickle.dumps([*state.written]))), two()

    def root(kind: Kind, key: Any) -> Any:
        return target if key == "script" else ABSENT

    found = RecordedData(nodes, root, {}, mark=-1)
    assert len([*found.numbers()]) == 2
    assert not [*RecordedData(nodes, root, {}, mark=100).numbers()]


def test_what_a_head_does_not_lead_to_has_no_place_from_then_on() -> None:
    """A loop of set-up that looked like one that trains had shown where it was."""
    names, trees = two(), ModuleTrees()
    data_places.settle(take(names, trees), trees.data_origins, -1, is_known=True)
    hidden = names["h"].train
    names["h"].train = names["h"].validate
    data_places.settle(take(names, trees), trees.data_origins, -1, is_known=True)
    assert trees.data_origins.origin(hidden).place == ()


def test_a_process_that_takes_over_hands_on_the_numbers_of_the_lost_rank() -> None:
    """Its records of running loops' heads are the lost rank's: both have to mean the same data by a number."""
    state, _ = trained(two(), swapped)
    origins, target = DataOrigins(), two()
    origins.note([Numbers(5)], Maker.EACH_PROCESS)
    for obj, form in rebuilt(state, target).data():
        origins.take_over(obj, Maker(form.maker), form.seen_at, form.place, form.number)
        assert origins.origin(obj).number == form.number
    unnumbered = Numbers(6)
    origins.take_over(unnumbered, Maker.EACH_PROCESS, 0)
    origins.number_rest()
    numbers = [origins.origin(data).number for data in (unnumbered, target["h"].train, target["h"].validate)]
    assert len({*numbers}) == 3
