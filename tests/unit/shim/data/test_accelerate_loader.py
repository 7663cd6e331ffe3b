"""On a loader of the same build as accelerate's 1.15.0; with accelerate itself: tests/faults/frameworks."""

from __future__ import annotations

from collections.abc import Iterator
from types import ModuleType
from typing import Any

import pytest
import torch
from support.failing_guard import FAILING
from torch.utils.data import DataLoader

from torchrelay.protocol.errors import StateMismatchError, UnsupportedError
from torchrelay.shim.capture.values.kinds import Kind, kind_of
from torchrelay.shim.data import accelerate_loader, data_loader, lead_iterators
from torchrelay.shim.data.iterator_replay import IteratorReplay

COUNT = 5


class State:
    def __init__(self) -> None:
        self._dataloader_references_ref: list[Any] = [None]


class Shard:
    """`beginning`: called where accelerate communicates."""

    end_of_dataloader = False

    def __init__(self, loader: Any, beginning: Any = lambda: None) -> None:
        self.base_dataloader, self.beginning = loader, beginning
        self.gradient_state, self.iteration, self.skip_batches = State(), 0, 0
        self.rng_types, self.device = None, None

    def begin(self) -> None:
        self.beginning()
        self.end_of_dataloader = False
        self.gradient_state._dataloader_references_ref += ["in use"]

    def end(self) -> None:
        self.gradient_state._dataloader_references_ref.pop()

    def __iter__(self) -> Iterator[Any]:
        self.begin()
        dataloader_iter = iter(self.base_dataloader)
        current_batch = next(dataloader_iter)
        batch_index = 0
        while True:
            try:
                next_batch = next(dataloader_iter)
                if batch_index >= self.skip_batches:
                    yield current_batch
                batch_index += 1
                current_batch = next_batch
            except StopIteration:
                self.end_of_dataloader = True
                yield current_batch
                break
        self.iteration += 1
        self.end()


@pytest.fixture
def draws(monkeypatch: pytest.MonkeyPatch) -> IteratorReplay:
    for name in ("__init__", "__next__", "_reset", "_next_index"):
        monkeypatch.setattr(data_loader.LoaderIter, name, getattr(data_loader.LoaderIter, name))
    monkeypatch.setattr(Shard, "__iter__", Shard.__iter__)
    draws = IteratorReplay()
    data_loader.install(draws, lambda: True, FAILING)
    draws.live = True
    draws.at_boundary()
    module = ModuleType("accelerate.data_loader")
    module.DataLoaderShard = Shard  # type: ignore[attr-defined]  # a module of the test's own
    accelerate_loader.install(module, lambda: draws)
    return draws


def noisy(items: list[Any]) -> float:
    """A collate function that draws numbers."""
    return float(items[0]) + float(torch.rand(1))


def shard(**options: Any) -> Shard:
    return Shard(DataLoader(list(range(COUNT)), collate_fn=noisy, batch_size=1), **options)  # type: ignore[arg-type]  # of any of its fields


def test_its_iterators_are_state_with_a_place(draws: IteratorReplay) -> None:
    iterator: Any = iter(shard())
    assert kind_of(type(iterator)) is Kind.REPLAY_POINT
    places = [(iterator.place()["at"], iterator.place()["index"])]
    for _ in iterator:
        places.append((iterator.place()["at"], iterator.place()["index"]))
    places.append((iterator.place()["at"], iterator.place()["index"]))
    assert places == [(0, 0), (1, 0), (1, 1), (1, 2), (1, 3), (2, 4), (3, 0)]


@pytest.mark.parametrize("drawn", range(COUNT + 1))
def test_another_process_goes_on_where_the_recorded_one_stood(draws: IteratorReplay, drawn: int) -> None:
    torch.manual_seed(3)
    recorded: Any = iter(shard())
    for _ in range(drawn):
        next(recorded)
    place, after = recorded.place(), torch.get_rng_state()
    record = draws.record(place["iterator"]) if place["iterator"] is not None else None
    rest = list(recorded)

    own = shard()
    joiner: Any = iter(own)
    torch.manual_seed(99)
    last: Any = None
    theirs = {**place, "loader": own}
    if record is not None:
        theirs["iterator"], last = lead_iterators.rebuild(draws, own.base_dataloader, record, None)
    joiner.go_to(theirs, last)
    torch.set_rng_state(after)
    assert list(joiner) == rest
    assert own.iteration == int(drawn < COUNT or place["at"] != 3)


def test_a_batch_that_was_drawn_ahead_is_not_drawn_under_later_random_numbers(draws: IteratorReplay) -> None:
    torch.manual_seed(3)
    recorded: Any = iter(shard())
    next(recorded)
    record = draws.record(recorded.place()["iterator"])
    assert record is not None
    torch.manual_seed(4)  # the step's own numbers
    expected = next(recorded)
    torch.manual_seed(99)
    _, last = lead_iterators.rebuild(draws, shard().base_dataloader, record, None)
    assert last == expected


def test_a_joiner_does_not_guess_the_batch_ahead(draws: IteratorReplay) -> None:
    recorded: Any = iter(shard())
    next(recorded)
    joiner: Any = iter(shard())
    with pytest.raises(StateMismatchError, match="was not led to its place"):
        joiner.go_to(recorded.place(), accelerate_loader.ABSENT)
    with pytest.raises(StateMismatchError, match="was not led to its place"):
        joiner.go_to({**recorded.place(), "iterator": None}, 1.0)


def test_draws_that_come_again_leave_behind_what_the_first_ones_did(draws: IteratorReplay) -> None:
    loader = shard()
    iterator = iter(loader)
    first = [next(iterator) for _ in range(COUNT - 1)]
    draws.at_boundary()
    before = (dict(vars(loader)), list(loader.gradient_state._dataloader_references_ref))
    last = next(iterator)
    assert list(iterator) == []
    after = (dict(vars(loader)), list(loader.gradient_state._dataloader_references_ref))
    assert before != after
    draws.rewind()
    vars(loader).clear()
    vars(loader).update(before[0])
    loader.gradient_state._dataloader_references_ref = before[1]
    assert [next(iterator)] == [last]
    assert loader.end_of_dataloader
    assert list(iterator) == []
    assert (dict(vars(loader)), loader.gradient_state._dataloader_references_ref) == after
    assert len(first) == COUNT - 1


def test_what_began_since_the_boundary_begins_again_with_what_it_communicates(draws: IteratorReplay) -> None:
    began: list[int] = []
    iterator = iter(shard(beginning=lambda: began.append(1)))
    draws.at_boundary()
    state = torch.get_rng_state()
    first = [next(iterator), next(iterator)]
    draws.rewind()
    torch.set_rng_state(state)
    assert [next(iterator), next(iterator)] == first
    assert len(began) == 2
    draws.at_boundary()
    third = next(iterator)
    draws.rewind()
    assert next(iterator) == third
    assert len(began) == 2


class Interrupted(BaseException):
    pass


def test_a_beginning_that_was_interrupted_begins_again(draws: IteratorReplay) -> None:
    failures = [Interrupted()]

    def beginning() -> None:
        if failures:
            raise failures.pop()

    iterator = iter(shard(beginning=beginning))
    with pytest.raises(Interrupted):
        next(iterator)
    draws.rewind()
    assert len(list(iterator)) == COUNT


def test_an_interrupted_batch_is_never_taken_for_the_end_of_the_data(draws: IteratorReplay) -> None:
    def interrupted(items: list[Any]) -> Any:
        if items[0] == 2:
            raise Interrupted
        return items[0]

    iterator = iter(Shard(DataLoader(list(range(COUNT)), collate_fn=interrupted, batch_size=1)))  # type: ignore[arg-type]  # a stand-in
    assert next(iterator) == 0
    with pytest.raises(Interrupted):
        next(iterator)
    for _ in range(2):
        with pytest.raises(StateMismatchError, match="interrupted in the middle of a batch"):
            next(iterator)


def test_a_loop_of_no_interest_gets_the_loaders_own_generator(
    draws: IteratorReplay, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = ModuleType("accelerate.data_loader")

    class Plain(Shard):
        pass

    module.DataLoaderShard = Plain  # type: ignore[attr-defined]  # a module of the test's own
    monkeypatch.undo()
    accelerate_loader.install(module, lambda: None)
    assert len(list(Plain(range(3)))) == 3
    assert not isinstance(iter(Plain(range(3))), accelerate_loader.LookAhead)


def other_variables(self: Any) -> Iterator[Any]:
    yield from self.base_dataloader


def one_yield(self: Any) -> Iterator[Any]:
    dataloader_iter = iter(self.base_dataloader)
    for batch_index, current_batch in enumerate(dataloader_iter):
        next_batch = current_batch, batch_index
        yield next_batch


@pytest.mark.parametrize("function", [other_variables, one_yield])
def test_a_loader_of_another_build_is_refused(function: Any) -> None:
    with pytest.raises(UnsupportedError, match="accelerate's loader"):
        accelerate_loader.LoaderPlaces(function)


def kept() -> Shard:
    torch.manual_seed(2)
    loader = DataLoader(list(range(COUNT)), collate_fn=noisy, batch_size=1, num_workers=1, persistent_workers=True)  # type: ignore[arg-type]  # a stand-in
    return Shard(loader)


@pytest.mark.parametrize("is_made_anew", [False, True])
@pytest.mark.parametrize("epochs", [0, 1])
def test_an_epoch_of_kept_workers_begins_again_with_it(draws: IteratorReplay, epochs: int, is_made_anew: bool) -> None:
    """`is_made_anew`: as in a loop that is in the step, and begins there again."""
    loader = kept()
    expected = [list(loader) for _ in range(3)]
    loader = kept()
    assert [list(loader) for _ in range(epochs)] == expected[:epochs]
    draws.at_boundary()
    before, iterator = torch.get_rng_state(), iter(loader)
    for _ in range(2):
        assert [next(iterator), next(iterator)] == expected[epochs][:2]
        draws.rewind()
        torch.set_rng_state(before)
        iterator = iter(loader) if is_made_anew else iterator
    assert list(iterator) == expected[epochs]
    assert list(loader) == expected[epochs + 1]
