from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator
from typing import Any

import numpy
import pytest
import torch
from support.host_state import carry, take
from torch.utils.data import ConcatDataset, Dataset, IterableDataset

from torchrelay.shim.capture.iteration import data_changes
from torchrelay.shim.capture.iteration.data_changes import DataChanges
from torchrelay.shim.capture.models.modules import ModuleTrees
from torchrelay.shim.capture.walks.rewalk import Rewalk


class Noise:
    def __init__(self) -> None:
        self.strength = 0.1


class Samples(Dataset[Any]):
    def __init__(self) -> None:
        self.rows, self.noise, self.epoch = [3, 1, 2], Noise(), 0
        self.labels, self.mask = torch.ones(3), numpy.ones(3)
        self.names, self.nested = {"a": 0}, [[1], [2]]

    def __len__(self) -> int:
        return len(self.rows)

    def grow(self) -> None:
        self.rows.append(len(self.rows))


@pytest.fixture
def changes() -> DataChanges:
    made = DataChanges()
    made.settle()
    return made


CHANGES: dict[str, Callable[[Any], object]] = {
    "rows": lambda data: data.rows.reverse(),
    "noise": lambda data: setattr(data.noise, "strength", 0.2),
    "labels": lambda data: data.labels.mul_(2),
    "mask": lambda data: data.mask.fill(0),
    "names": lambda data: data.names.update(a=1),
    "nested": lambda data: data.nested[1].append(3),
}


@pytest.mark.parametrize("name", CHANGES)
def test_what_the_script_changes_below_a_data_set_is_state_from_then_on(name: str, changes: DataChanges) -> None:
    data = Samples()
    changes.look([data])
    changes.look([data])
    assert data_changes.carried(data) == {}
    CHANGES[name](data)
    changes.look([data])
    assert [*data_changes.carried(data)] == [name]
    assert [*changes.changed.objects()] == [data]


def test_plain_attributes_are_state_anyway(changes: DataChanges) -> None:
    data = Samples()
    changes.look([data])
    data.epoch = 1
    changes.look([data])
    assert data_changes.carried(data) == {}
    assert [*changes.changed.objects()] == [data]


def test_what_draws_change_is_not_meant_and_what_the_script_does_between_two_passes_is(changes: DataChanges) -> None:
    data = Samples()
    changes.look([data])
    changes.drawn(data)
    data.grow()
    changes.is_drawn(data)
    changes.look([data])
    assert data_changes.carried(data) == {}
    data.grow()
    changes.look([data])
    assert [*data_changes.carried(data)] == ["rows"]


class Opened(Dataset[Any]):
    """Opened at its first draw, with an entry that it takes out of its configuration."""

    def __init__(self, configuration: dict[str, str]) -> None:
        self.configuration, self.cache = configuration, [0]
        self.reader: Any = None

    def open(self) -> None:
        self.reader = [self.configuration.pop("kind")]
        self.cache.append(1)


def test_what_a_first_draw_makes_out_of_what_is_state_is_state_too(changes: DataChanges) -> None:
    configuration = {"kind": "file"}
    data = Opened(configuration)
    changes.drawn(data)
    data.open()
    changes.look_at_made([data], {id(data.cache)})
    assert [*data_changes.carried(data)] == ["reader"]


def test_what_a_first_draw_makes_is_not_state_where_it_has_changed_nothing_that_is(changes: DataChanges) -> None:
    data = Opened({"kind": "file"})
    changes.drawn(data)
    data.open()
    unchanged = [1]
    data.unchanged = unchanged  # type: ignore[attr-defined]  # as scripts do
    changes.look_at_made([data], {id(data), id(data.reader)})
    assert data_changes.carried(data) == {}


def test_a_pass_that_is_over_is_looked_at_once(changes: DataChanges) -> None:
    data = Opened({"kind": "file"})
    assert not changes.is_pending
    changes.drawn(data)
    changes.is_drawn(data)
    assert changes.is_pending
    changes.look_at_made([data], {})
    assert not changes.is_pending


def test_a_change_in_the_midst_of_draws_cannot_be_told_from_theirs(changes: DataChanges) -> None:
    data = Samples()
    changes.look([data])
    changes.drawn(data)
    data.grow()
    changes.look([data])
    assert data_changes.carried(data) == {}


def test_a_stream_that_is_drawn_from_in_this_process_stays_where_it_is(changes: DataChanges) -> None:
    class Stream(Samples, IterableDataset[Any]):
        def __iter__(self) -> Iterator[int]:
            return iter(self.rows)

    here, in_workers = Stream(), Stream()
    changes.look([here, in_workers])
    changes.drawn(here)
    changes.is_drawn(here)
    for data in (here, in_workers):
        data.grow()
    changes.look([here, in_workers])
    assert data_changes.carried(here) == {}
    assert [*data_changes.carried(in_workers)] == ["rows"]


def test_data_sets_within_another_one_are_looked_at_as_well(changes: DataChanges) -> None:
    inner = Samples()
    outer: ConcatDataset[Any] = ConcatDataset([inner])
    changes.look([outer])
    inner.grow()
    changes.look([outer])
    assert [*data_changes.carried(inner)] == ["rows"]
    assert [*data_changes.carried(outer)] == ["datasets"]


def test_a_long_list_is_told_by_which_objects_it_holds(changes: DataChanges) -> None:
    data = Samples()
    data.rows = [*range(100_000)]
    changes.look([data])
    data.rows[7], data.rows[8] = data.rows[8], data.rows[7]
    changes.look([data])
    assert [*data_changes.carried(data)] == ["rows"]


def test_what_is_too_much_to_be_looked_at_is_told_by_its_outermost_container(changes: DataChanges) -> None:
    data = Samples()
    data.nested = [[place] * 100 for place in range(1000)]
    changes.look([data])
    data.nested[3][0] = -1
    changes.look([data])
    assert data_changes.carried(data) == {}
    del data.nested[0]
    changes.look([data])
    assert [*data_changes.carried(data)] == ["nested"]


def test_a_new_process_is_given_it_in_place(changes: DataChanges) -> None:
    lost, new = Samples(), Samples()
    rows = new.rows
    changes.look([lost])
    lost.rows[:] = [9, 8]
    lost.noise.strength = 0.5
    changes.look([lost])
    carry({"data": lost}, {"data": new})
    assert new.rows is rows
    assert (rows, new.noise.strength) == ([9, 8], 0.5)
    assert {*data_changes.carried(new)} == {"rows", "noise"}


def test_a_walk_that_goes_on_walks_into_what_has_changed(changes: DataChanges) -> None:
    data, trees = Samples(), ModuleTrees()
    space = {"data": data}
    before = take(space, trees)
    changes.look([data])
    data.grow()
    changes.look([data])
    state = Rewalk(trees, before, at_gate=False).run([], {"script": space})
    assert id(data.rows) in state.index
    assert id(data.names) not in state.index


def test_a_look_at_many_arrays_costs_no_more_than_its_share(
    changes: DataChanges, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(data_changes, "_MOST_ARRAY_BYTES", 100)
    data = Samples()
    data.nested = [numpy.ones(10), numpy.ones(10)]  # type: ignore[list-item]  # arrays for once
    changes.look([data])
    data.nested[1].fill(2)  # type: ignore[attr-defined]  # the same
    changes.look([data])
    assert data_changes.carried(data) == {}, "it is beyond the first 100 bytes"
    data.nested[0].fill(2)  # type: ignore[attr-defined]  # the same
    changes.look([data])
    assert [*data_changes.carried(data)] == ["nested"]


def test_data_sets_that_the_script_lets_go_of_are_free_at_once(changes: DataChanges) -> None:
    data = Samples()
    gone = [weakref.ref(data)]
    changes.drawn(data)
    changes.is_drawn(data)
    changes.look([data])
    data.grow()
    changes.look([data])
    assert data_changes.carried(data)
    assert gone[0]() is data
    del data
    assert gone[0]() is None
    assert not len(changes.changed)


def test_what_is_written_between_two_draws_in_this_process_is_state(changes: DataChanges) -> None:
    data = Samples()
    changes.drawn(data)
    data.names["drawn"] = 1
    changes.has_yielded(data)
    data.labels.mul_(2)
    changes.drawn(data)
    assert [*data_changes.carried(data)] == ["labels"]


class Turned(torch.nn.Module):
    def __init__(self, degrees: float) -> None:
        super().__init__()
        self.degrees = [-degrees, degrees]


def test_a_data_set_with_modules_that_do_not_learn_is_little(changes: DataChanges) -> None:
    samples = Samples()
    samples.transform = torch.nn.Sequential(Turned(15.0))  # type: ignore[attr-defined]  # as scripts give a data set one
    assert data_changes.is_light(samples)
    samples.transform.append(torch.nn.Linear(2, 2))  # type: ignore[attr-defined]  # see above
    assert not data_changes.is_light(samples)


def test_data_below_it_that_a_new_process_has_itself_does_not_count(changes: DataChanges) -> None:
    inner, samples = Samples(), Samples()
    inner.much = torch.zeros(1 << 20)  # type: ignore[attr-defined]  # more than is written
    samples.source = [inner]  # type: ignore[attr-defined]  # as scripts give a data set one
    assert not data_changes.is_light(samples)
    assert data_changes.is_light(samples, lambda data: data is inner)


def test_a_change_of_a_module_that_does_not_learn_is_one_of_the_data_set(changes: DataChanges) -> None:
    turned, mark = Turned(15.0), data_changes._Mark
    before = mark().of(turned)
    assert mark().of(turned) == before
    turned.degrees[1] = 0.0
    assert mark().of(turned) != before
