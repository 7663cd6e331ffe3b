"""Seen on torch 2.13."""

from __future__ import annotations

import itertools
import multiprocessing
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from support.failing_guard import FAILING
from support.noisy_loader import Noisy, loader_of, values
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    IterableDataset,
    RandomSampler,
    SequentialSampler,
    TensorDataset,
    dataloader,
)
from torch.utils.data.distributed import DistributedSampler

from torchrelay.shim.capture import rng
from torchrelay.shim.capture.iteration import loader_order, shared_memory
from torchrelay.shim.data import data_loader, lead_iterators
from torchrelay.shim.data.iterator_replay import IteratorReplay


def test_what_was_drawn_since_the_boundary_comes_again_and_then_something_new(draws: IteratorReplay) -> None:
    iterator = iter(loader_of(shuffle=True))
    next(iterator)
    draws.at_boundary()
    first = [next(iterator), next(iterator)]
    after = torch.get_rng_state()
    draws.rewind()
    torch.rand(5)
    again = [next(iterator), next(iterator)]
    assert values(again) == values(first)
    assert torch.equal(torch.get_rng_state(), after)
    third = next(iterator)
    assert values([third])[0] not in values(first)


def test_a_second_rewind_replays_what_was_half_replayed(draws: IteratorReplay) -> None:
    iterator = iter(loader_of())
    first = [next(iterator), next(iterator), next(iterator)]
    draws.rewind()
    next(iterator)
    draws.rewind()
    assert values([next(iterator) for _ in range(3)]) == values(first)


def test_a_step_may_change_the_containers_of_its_batch(draws: IteratorReplay) -> None:
    loader = DataLoader([{"x": torch.ones(1), "tags": [1]}], batch_size=None)
    iterator = iter(loader)
    batch = next(iterator)
    batch["moved"] = 1
    batch["tags"].append(2)
    draws.rewind()
    assert next(iterator) == {"x": torch.ones(1), "tags": [1]}


def test_iterators_below_others_are_not_recorded_twice(draws: IteratorReplay) -> None:
    def above(iterator: Iterator[Any]) -> Iterator[Any]:
        for batch in iterator:
            yield batch * 10

    iterator = above(iter(loader_of()))
    first = draws.draw(iterator, next)
    draws.rewind()
    assert values([draws.draw(iterator, next)]) == values([first])
    assert len(draws.consumed) == 1


def test_what_a_data_set_asks_for_itself_comes_again_with_the_item_alone(draws: IteratorReplay) -> None:
    class Asking(IterableDataset[int]):
        def __init__(self, source: Iterator[int]) -> None:
            self.source = source

        def __iter__(self) -> Iterator[int]:
            while True:
                yield draws.next(next, self.source)

    iterator = iter(DataLoader(Asking(iter(range(100))), batch_size=2))
    first = next(iterator).tolist()
    draws.rewind()
    assert [next(iterator).tolist(), next(iterator).tolist()] == [first, [2, 3]]


def test_the_end_is_no_item(draws: IteratorReplay) -> None:
    iterator = iter(loader_of())
    assert len(list(iterator)) == 6
    draws.at_boundary()
    with pytest.raises(StopIteration):
        next(iterator)
    draws.rewind()
    with pytest.raises(StopIteration):
        next(iterator)


def test_entries_hold_their_iterators_so_that_no_address_is_taken_for_another(draws: IteratorReplay) -> None:
    first = iter(loader_of())
    next(first)
    key = id(first)
    del first
    assert draws.consumed[key][0] is not None
    second = iter(loader_of())
    assert id(second) != key


SAMPLERS = {
    "global": lambda: loader_of(shuffle=True),
    "own generator": lambda: loader_of(shuffle=True, generator=torch.Generator().manual_seed(5)),
    "sampler's": lambda: loader_of(sampler=RandomSampler(Noisy(), generator=torch.Generator().manual_seed(6))),
    "replacement": lambda: loader_of(sampler=RandomSampler(Noisy(), replacement=True, num_samples=12)),
    "distributed": lambda: loader_of(sampler=DistributedSampler(Noisy(), num_replicas=1, rank=0)),
}


@pytest.mark.parametrize("drawn", [1, 4])
@pytest.mark.parametrize("kind", SAMPLERS)
def test_a_joiners_iterator_is_led_to_where_the_recorded_one_stood(
    draws: IteratorReplay, kind: str, drawn: int
) -> None:
    torch.manual_seed(1)
    loader = SAMPLERS[kind]()
    list(loader)
    if isinstance(loader.sampler, DistributedSampler):
        loader.sampler.set_epoch(3)
    recorded = iter(loader)
    torch.rand(3)
    for _ in range(drawn):
        next(recorded)
        torch.rand(1)
    record = draws.record(recorded)
    assert record is not None
    at = rng.capture()
    rest = [next(recorded) for _ in range(6 - drawn)]

    torch.manual_seed(2)
    joiner, _ = lead_iterators.rebuild(draws, SAMPLERS[kind](), record, None)
    rng.restore(at)
    assert values([next(joiner) for _ in range(6 - drawn)]) == values(rest)
    with pytest.raises(StopIteration):
        next(joiner)


def test_an_iterator_that_nobody_has_drawn_from_chooses_its_order_at_its_first_draw(draws: IteratorReplay) -> None:
    recorded = iter(loader_of(shuffle=True))
    record = draws.record(recorded)
    assert record is not None
    at = rng.capture()
    expected = values(list(recorded))
    torch.manual_seed(2)
    joiner, _ = lead_iterators.rebuild(draws, loader_of(shuffle=True), record, None)
    rng.restore(at)
    assert values(list(joiner)) == expected


def test_an_epoch_that_was_set_after_the_iterator_was_made_decides_its_order(draws: IteratorReplay) -> None:
    loader = SAMPLERS["distributed"]()
    recorded = iter(loader)
    loader.sampler.set_epoch(3)
    next(recorded)
    record = draws.record(recorded)
    assert record is not None
    loader.sampler.set_epoch(4)
    at = rng.capture()
    rest = values(list(recorded))
    joiner, _ = lead_iterators.rebuild(draws, SAMPLERS["distributed"](), record, None)
    rng.restore(at)
    assert values(list(joiner)) == rest


@pytest.mark.parametrize("kind", SAMPLERS)
def test_the_item_of_the_running_iteration_is_drawn_again_as_it_was(draws: IteratorReplay, kind: str) -> None:
    recorded = iter(SAMPLERS[kind]())
    for _ in range(3):
        torch.rand(1)
        item = next(recorded)
    record = draws.record(recorded)
    assert record is not None
    torch.manual_seed(9)
    draws.expected.append((record, True))
    joiner = iter(SAMPLERS[kind]())
    assert [next(joiner), next(joiner)] == [None, None]
    assert values([next(joiner)]) == values([item])


def test_skipped_items_are_not_loaded(draws: IteratorReplay) -> None:
    loaded: list[int] = []

    class Counting(Noisy):
        def __getitem__(self, index: int) -> torch.Tensor:
            loaded.append(index)
            return torch.ones(1)

    iterator = iter(DataLoader(Counting(), batch_size=2))
    for _ in range(5):
        next(iterator)
    record = draws.record(iterator)
    assert record is not None
    loaded.clear()
    lead_iterators.rebuild(draws, DataLoader(Counting(), batch_size=2), record, None)
    assert loaded == [8, 9]


def test_other_threads_and_an_idle_shim_are_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("__init__", "__next__", "_reset", "_next_index"):
        monkeypatch.setattr(data_loader.LoaderIter, name, getattr(data_loader.LoaderIter, name))
    draws = IteratorReplay()
    data_loader.install(draws, lambda: False, FAILING)
    draws.live = draws.recording = True
    assert len(list(DataLoader(TensorDataset(torch.ones(4))))) == 4
    assert not draws.consumed
    assert not draws.tracks


def test_what_a_loop_has_drawn_is_noted_once(draws: IteratorReplay) -> None:
    draws.recording = True
    loader = loader_of()
    iterator = iter(loader)
    item = next(iterator)
    (drawn,) = draws.consumed[id(iterator)][1]
    assert draws.noted(item, rng.capture()) is drawn
    assert draws.noted(item, rng.capture()) is not drawn


def test_another_item_or_generators_that_were_used_since_are_noted_anew(draws: IteratorReplay) -> None:
    draws.recording = True
    iterator = iter(loader_of())
    for use in (lambda item: [*item], lambda item: (torch.rand(1), item)[1]):
        item = use(next(iterator))
        now = rng.capture()
        noted = draws.noted(item, now)
        assert all(noted is not known for known in draws.consumed[id(iterator)][1])
        assert noted.after == now
        assert values(noted.item) == values(item)


@pytest.mark.parametrize(
    ("make", "through"),
    [
        (lambda it: it, True),
        (enumerate, True),
        (lambda it: zip(it, it), True),
        (lambda it: enumerate(zip(it, itertools.count())), True),
        (lambda it: map(torch.sum, it), False),
        (lambda it: zip([1], itertools.cycle(it)), False),
        (lambda it: enumerate(map(torch.sum, it)), False),
        (lambda it: (x for x in it), False),
    ],
)
def test_only_what_hands_items_on_unseen_may_skip(make: Any, through: bool) -> None:
    drawn = iter(loader_of())
    assert data_loader.passed_through(make(drawn)) == ({id(drawn)} if through else set())


def test_an_iterator_that_makes_a_loaders_later_lets_nothing_through() -> None:
    drawn = iter(loader_of())
    assert data_loader.lets_all_through(enumerate(zip(drawn, drawn)))
    assert not data_loader.lets_all_through(zip(drawn, itertools.chain.from_iterable([loader_of()])))


def test_the_private_names_are_there() -> None:
    iterator = iter(loader_of())
    names = ("_next_index", "_sampler_iter", "_num_workers", "_dataset_kind", "_num_yielded")
    assert [name for name in names if not hasattr(iterator, name)] == []
    assert dataloader._DatasetKind.Map == loader_of()._dataset_kind


class Counting:
    """An iterator whose attributes say what comes next, as scripts write them."""

    def __init__(self, inner: Iterator[Any] | None = None) -> None:
        self.place, self.inner = 0, inner

    def __next__(self) -> int:
        self.place += 1
        return self.place


def test_an_iterator_that_goes_back_with_its_attributes_is_not_answered_from_the_record(draws: IteratorReplay) -> None:
    counting = Counting()
    assert draws.draw(counting, next) == 1
    draws.rewind()
    counting.place = 0
    assert draws.draw(counting, next) == 1
    assert counting.place == 1


def test_one_that_hides_another_iterator_is_answered_from_the_record(draws: IteratorReplay) -> None:
    hiding = Counting(iter([7, 8]))
    assert draws.draw(hiding, next) == 1
    draws.rewind()
    hiding.place = 5
    assert draws.draw(hiding, next) == 1


def test_workers_that_are_kept_have_to_be_led_to_by_a_joiner(draws: IteratorReplay) -> None:
    loader = loader_of(num_workers=1, persistent_workers=True)
    first = iter(loader)
    assert not draws.kept_workers({id(first)})
    assert draws.kept_workers(set())
    assert len(list(first)) == 6
    again = iter(loader)
    assert again is first
    assert draws.kept_workers(set())
    assert not draws.kept_workers({id(again)})
    assert len(list(again)) == 6


def test_workers_of_an_epoch_of_their_own_are_no_matter(draws: IteratorReplay) -> None:
    loader = loader_of(num_workers=1)
    assert len(list(loader)) == 6
    assert len(list(iter(loader))) == 6
    assert not draws.kept_workers(set())


def test_a_draw_that_comes_again_moves_the_samplers_generator_as_the_first_one_did(draws: IteratorReplay) -> None:
    loader = SAMPLERS["sampler's"]()
    iterator = iter(loader)
    draws.at_boundary()
    before = loader.sampler.generator.get_state()
    first = next(iterator)
    after = loader.sampler.generator.get_state()
    assert not torch.equal(before, after)
    draws.rewind()
    loader.sampler.generator.set_state(before)  # as a rewind does: it is state
    assert values([next(iterator)]) == values([first])
    assert torch.equal(loader.sampler.generator.get_state(), after)


def test_samplers_around_samplers_decide_the_order_too(draws: IteratorReplay) -> None:
    inner = RandomSampler(Noisy(), generator=torch.Generator().manual_seed(6))
    loader = DataLoader(Noisy(), batch_sampler=BatchSampler(inner, 2, drop_last=False))
    assert [type(owner) for owner in loader_order.owners(loader)] == [
        DataLoader,
        SequentialSampler,
        BatchSampler,
        RandomSampler,
    ]


def test_epochs_of_kept_workers_begin_where_nobody_has_gone_back(draws: IteratorReplay) -> None:
    loader = DataLoader(torch.arange(8), num_workers=1, persistent_workers=True)
    draws.at_boundary()
    assert len(list(loader)) == len(list(loader)) == 8
    draws.rewind()
    draws.at_boundary()
    assert len(list(loader)) == 8


class Counted:
    """Counts in memory that worker processes share."""

    def __init__(self) -> None:
        self.counter = multiprocessing.Value("i", 0)

    def __call__(self, samples: list[Any]) -> int:
        with self.counter.get_lock():
            self.counter.value += 1
            return self.counter.value


def test_workers_of_an_iterator_that_set_up_has_made_do_not_count_along(
    draws: IteratorReplay, monkeypatch: pytest.MonkeyPatch
) -> None:
    def loader_of() -> DataLoader[Any]:
        return DataLoader(range(8), batch_size=2, num_workers=1, collate_fn=Counted())  # type: ignore[arg-type]  # a data set

    iterator = iter(loader_of())
    assert next(iterator) == 1
    record = draws.record(iterator)
    assert record is not None
    loader = loader_of()
    of_set_up: Any = iter(loader)
    workers, put, seen = [*of_set_up._workers], shared_memory.put, []

    def look(*given: Any) -> None:
        seen.append([worker.is_alive() for worker in workers])
        put(*given)

    monkeypatch.setattr(shared_memory, "put", look)
    made, last = lead_iterators.rebuild(draws, loader, record, of_set_up)
    assert seen == [[False]]
    assert (last, [*made]) == (1, [2, 3, 4])
