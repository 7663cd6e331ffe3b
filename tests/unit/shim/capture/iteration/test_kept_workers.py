"""Seen on torch 2.13."""

from __future__ import annotations

import functools
import multiprocessing
import random
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from support.failing_guard import FAILING
from torch.utils.data import DataLoader, Dataset, IterableDataset, get_worker_info

from torchrelay.shim.data import data_loader, lead_iterators
from torchrelay.shim.data.iterator_replay import IteratorReplay
from torchrelay.shim.script import sites


class Noisy(Dataset[torch.Tensor]):
    """What its items are depends on all that a worker keeps from one epoch to the next."""

    def __init__(self) -> None:
        self.own = random.Random(7)
        self.given = 0
        self.seeds: list[int] = []

    def __len__(self) -> int:
        return 8

    def __getitem__(self, index: int) -> torch.Tensor:
        self.given += 1
        info = get_worker_info()
        seed = info.seed % 1000 if info is not None else -1
        drawn = [index, torch.rand(1).item(), random.random(), self.own.random(), self.given, seed]
        return torch.tensor(drawn, dtype=torch.float64)


class Unknowable(Noisy):
    def __getitem__(self, index: int) -> torch.Tensor:
        self.seeds.append(lambda: index)  # type: ignore[arg-type]  # that is what is tried: it cannot be pickled
        return super().__getitem__(index)


class Remembering(Noisy):
    """A data set in memory that keeps what it has made of its rows, and changes some of it: what it gives tells all of that."""

    def __init__(self) -> None:
        super().__init__()
        self.rows = torch.arange(16, dtype=torch.float64).reshape(8, 2)
        self.settings = {"times": 1.0}
        self.made: dict[int, Any] = {}
        self.first: Any = "none yet"

    def __getitem__(self, index: int) -> torch.Tensor:
        kept = self.made.setdefault(index, {"row": self.rows[index], "of": self.settings, "seen": torch.zeros(1)})
        if self.first == "none yet":
            self.first = kept
        self.first["seen"] += 1
        shares = kept["row"].data_ptr() == self.rows[index].data_ptr() and kept["of"] is self.settings
        more = [*kept["row"].tolist(), kept["seen"].item(), float(shares), float(len(self.made))]
        return torch.cat([super().__getitem__(index), torch.tensor(more, dtype=torch.float64)])


class Staged(Noisy):
    """What its items are depends on a number in shared memory, on what is kept beside a long table, and on a nameless function."""

    def __init__(self) -> None:
        super().__init__()
        self.epoch = multiprocessing.Value("i", 0)
        table = {f"word {i}": i for i in range(20000)}
        self.stages: dict[str, Any] = {"epoch": self.epoch, "table": table, "made": [], "lock": threading.Lock()}
        self.stages["made of"] = lambda index, times: float(index * times)

    def __getitem__(self, index: int) -> torch.Tensor:
        made, known = self.stages["made"], self.stages["table"]
        made.append(known[f"word {index}"])
        more = [self.epoch.value, self.stages["made of"](index, len(made)), float(self.stages["epoch"] is self.epoch)]
        return torch.cat([super().__getitem__(index), torch.tensor(more, dtype=torch.float64)])


class Hiding(Staged):
    """Nobody finds its number in shared memory."""

    def __init__(self) -> None:
        super().__init__()
        self.stages["hidden"] = functools.partial(print, multiprocessing.Value("i", 0))


class OfManyNumbers(Staged):
    """Its numbers in shared memory are data."""

    def __init__(self) -> None:
        super().__init__()
        self.kept = multiprocessing.Array("d", 10000)


@pytest.fixture
def draws(monkeypatch: pytest.MonkeyPatch) -> Iterator[IteratorReplay]:
    """With the hooks in place, for a rank that has reached its first boundary."""
    for name in ("__init__", "__next__", "_reset", "_next_index"):
        monkeypatch.setattr(data_loader.LoaderIter, name, getattr(data_loader.LoaderIter, name))
    draws = IteratorReplay()
    data_loader.install(draws, lambda: True, FAILING)
    draws.live = True
    draws.at_boundary()
    yield draws
    draws.tracks.clear()


def loader_of(data: Any = None, **more: Any) -> DataLoader[Any]:
    options = {"batch_size": 2, "shuffle": True, "num_workers": 2, "persistent_workers": True, **more}
    return DataLoader(data or Noisy(), **options)


def values(batches: Any) -> list[Any]:
    return [batch.tolist() for batch in batches]


def epochs(count: int) -> list[Any]:
    torch.manual_seed(3)
    loader = loader_of()
    return [values(loader) for _ in range(count)]


def test_what_is_told_of_workers_does_not_change_what_they_yield(draws: IteratorReplay) -> None:
    told = epochs(3)
    draws.live = False
    assert told == epochs(3)
    assert told[0] != told[1]


@pytest.mark.parametrize(
    ("data", "start"), [(Noisy, "fork"), (Remembering, "fork"), (Remembering, "spawn"), (Noisy, "forkserver")]
)
def test_new_workers_go_on_in_a_later_epoch_as_those_before_them(draws: IteratorReplay, data: Any, start: str) -> None:
    loader = loader_of(data(), multiprocessing_context=start)
    for _ in range(2):
        list(loader)
    iterator = iter(loader)
    first = [next(iterator) for _ in range(2)]
    record = draws.record(iterator)
    assert record is not None
    assert record.epoch is not None
    assert record.drawn == 2
    record = type(record).of(record.plain())
    rest, later = values(iterator), values(loader)

    torch.manual_seed(99)
    other = loader_of(data(), multiprocessing_context=start)
    made, last = lead_iterators.rebuild(draws, other, record, None)
    assert values([last]) == values(first[1:])
    assert values(made) == rest
    assert values(other) == later


def begun_with_epochs(draws: IteratorReplay, data: Any) -> tuple[DataLoader[Any], Any, Any]:
    """Return a loader in its third epoch, whose number its workers share, with the iterator of it and a record of that."""
    loader = loader_of(data)
    for epoch in range(2):
        data.epoch.value = epoch
        list(loader)
    data.epoch.value = 2
    iterator = iter(loader)
    next(iterator)
    record = draws.record(iterator)
    assert record is not None
    return loader, iterator, type(record).of(record.plain())


def test_parts_that_cannot_be_written_are_there_in_new_workers_and_numbers_in_shared_memory_are_as_the_epoch_began(
    draws: IteratorReplay,
) -> None:
    data = Staged()
    loader, iterator, record = begun_with_epochs(draws, data)
    assert record.epoch is not None
    rest = values(iterator)
    data.epoch.value = 3
    later = values(loader)

    torch.manual_seed(99)
    again = Staged()
    other = loader_of(again)
    made, _ = lead_iterators.rebuild(draws, other, record, None)
    assert values(made) == rest
    assert again.epoch.value == 2
    again.epoch.value = 3
    assert values(other) == later


@pytest.mark.parametrize("data", [Hiding, OfManyNumbers])
def test_numbers_in_shared_memory_that_are_not_carried_are_refused(draws: IteratorReplay, data: Any) -> None:
    _, _, record = begun_with_epochs(draws, data())
    assert record.epoch is None


class Stream(IterableDataset[torch.Tensor]):
    def __init__(self) -> None:
        self.passes = 0

    def __iter__(self) -> Iterator[torch.Tensor]:
        self.passes += 1
        for i in range(7):
            yield torch.tensor([i, self.passes, random.random()], dtype=torch.float64)


def test_so_do_those_that_read_a_stream(draws: IteratorReplay) -> None:
    loader = loader_of(Stream(), shuffle=False)
    list(loader)
    iterator = iter(loader)
    next(iterator)
    record = draws.record(iterator)
    assert record is not None
    rest, later = values(iterator), values(loader)
    torch.manual_seed(99)
    other = loader_of(Stream(), shuffle=False)
    made, _ = lead_iterators.rebuild(draws, other, record, None)
    assert values(made) == rest
    assert values(other) == later
    assert len(rest) == 7


def test_an_iterator_that_set_up_has_made_is_not_gone_on_with(draws: IteratorReplay) -> None:
    loader = loader_of()
    list(loader)
    iterator = iter(loader)
    record = draws.record(iterator)
    rest = values(iterator)
    other = loader_of()
    next(iter(other))
    assert record is not None
    made, _ = lead_iterators.rebuild(draws, other, record, None)
    assert values(made) == rest


def test_kept_workers_are_no_hindrance_as_long_as_all_of_them_is_told(draws: IteratorReplay) -> None:
    loader = loader_of()
    iterator = iter(loader)
    assert not draws.kept_workers({id(iterator)})
    assert draws.kept_workers(set())
    list(iterator)
    iter(loader)
    assert not draws.kept_workers({id(iterator)})


def test_a_data_set_that_its_workers_change_to_what_cannot_be_pickled_is_one(draws: IteratorReplay) -> None:
    loader = loader_of(Unknowable())
    iterator = iter(loader)
    list(iterator)
    iter(loader)
    assert draws.kept_workers({id(iterator)})


def test_an_epoch_that_began_since_the_boundary_begins_again_as_it_did(draws: IteratorReplay) -> None:
    """A step that takes the next batch itself, and begins anew where there is none left."""
    loader = loader_of()
    iterator = iter(loader)
    while draws.tracks[iterator].drawn < 4:
        next(iterator)
    draws.at_boundary()
    before = torch.get_rng_state()

    def step() -> Any:
        try:
            return values([next(iterator)]), 0
        except StopIteration:
            return values([next(iter(loader))]), 1

    first, after = step(), torch.get_rng_state()
    for _ in range(2):
        draws.rewind()
        torch.set_rng_state(before)
        assert step() == first == (first[0], 1)
        assert torch.equal(torch.get_rng_state(), after)
    assert draws.tracks[iterator].drawn == 1
    assert len(list(iterator)) == 3


def test_a_data_set_that_training_changes_while_workers_have_it_is_one(draws: IteratorReplay) -> None:
    """They do not see it, and new ones would."""
    data = Noisy()
    loader = loader_of(data)
    iterator = iter(loader)
    list(iterator)
    data.given = 5  # what is told is no hindrance
    iter(loader)
    assert not draws.kept_workers({id(iterator)})
    data.seeds.append(1)
    iter(loader)
    assert draws.kept_workers({id(iterator)})


class Mixing:
    def __init__(self) -> None:
        self.own = random.Random(5)

    def __call__(self, items: list[torch.Tensor]) -> torch.Tensor:
        return torch.stack(items) * self.own.random()


@pytest.mark.parametrize(("collate", "is_one"), [(Mixing(), True), (torch.stack, False)])
def test_what_makes_batches_in_workers_and_changes_with_it_is_one(
    draws: IteratorReplay, collate: Any, is_one: bool
) -> None:
    loader = loader_of(collate_fn=collate)
    iterator = iter(loader)
    list(iterator)
    iter(loader)
    assert draws.kept_workers({id(iterator)}) is is_one


OF_MODULE = random.Random(3)
DATA = Remembering()


def test_a_data_set_that_is_a_variable_of_the_script_is_told_as_the_loaders_own(
    draws: IteratorReplay, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sites, "INSTRUMENTED_FILES", {__file__})
    loader = loader_of(DATA)
    iterator = iter(loader)
    list(iterator)
    iter(loader)
    assert not draws.kept_workers({id(iterator)})


CACHE: dict[int, Any] = {}
CALLS = 0
BY_KEY: dict[str, Any] = {"known": [1]}


class OfModule(Noisy):
    """What it gives depends on what its workers keep in variables of the script, and in a default argument that is one."""

    seen: list[int] = []  # noqa: RUF012 - as scripts write it

    def __getitem__(self, index: int) -> torch.Tensor:
        global CALLS
        CALLS += 1
        self.seen.append(index)
        first = CACHE.setdefault(index, {"at": CALLS, "drawn": torch.zeros(1), "of": BY_KEY})
        first["drawn"] += OF_MODULE.random()
        more = [
            CALLS,
            first["at"],
            first["drawn"].item(),
            through_default(index),
            len(self.seen),
            first["of"] is BY_KEY,
        ]
        return torch.cat([super().__getitem__(index), torch.tensor(more, dtype=torch.float64)])


def through_default(index: int, cache: dict[int, Any] = CACHE) -> float:
    return float(cache[index]["drawn"])


@pytest.mark.parametrize("start", ["fork", "spawn"])
def test_new_workers_have_what_those_before_them_had_in_the_scripts_variables(
    draws: IteratorReplay, monkeypatch: pytest.MonkeyPatch, start: str
) -> None:
    monkeypatch.setattr(sites, "INSTRUMENTED_FILES", {__file__})
    loader = loader_of(OfModule(), multiprocessing_context=start, worker_init_fn=in_the_script)
    for _ in range(2):
        list(loader)
    iterator = iter(loader)
    record = draws.record(iterator)
    assert record is not None
    assert record.epoch is not None
    rest, later = values(iterator), values(loader)
    torch.manual_seed(99)
    other = loader_of(OfModule(), multiprocessing_context=start, worker_init_fn=in_the_script)
    made, _ = lead_iterators.rebuild(draws, other, record, None)
    assert values(made) == rest
    assert values(other) == later


def in_the_script(_: int) -> None:
    sites.INSTRUMENTED_FILES = {__file__}


class Keeping(Noisy):
    """It keeps in variables what cannot be carried."""

    def __init__(self, change: Callable[[], object]) -> None:
        super().__init__()
        self.change = change

    def __getitem__(self, index: int) -> torch.Tensor:
        self.change()
        return super().__getitem__(index)


def _bind_another() -> None:
    global CACHE
    CACHE = {1: 2}


class _Counter:
    calls = 0


COUNTER = _Counter()


@pytest.mark.parametrize(
    ("change", "is_one"),
    [
        (lambda: None, False),
        (_bind_another, True),
        (lambda: CACHE.update(f=lambda: 1), True),
        (lambda: setattr(COUNTER, "calls", 1), True),
        (lambda: CACHE.update(held=BY_KEY["known"]), True),
    ],
)
def test_what_workers_change_in_the_scripts_variables_and_cannot_be_carried_is_one(
    draws: IteratorReplay, monkeypatch: pytest.MonkeyPatch, change: Callable[[], object], is_one: bool
) -> None:
    monkeypatch.setattr(sites, "INSTRUMENTED_FILES", {__file__})
    loader = loader_of(Keeping(change))
    iterator = iter(loader)
    list(iterator)
    iter(loader)
    assert draws.kept_workers({id(iterator)}) is is_one


def test_the_workers_of_a_loader_that_the_script_drops_end(draws: IteratorReplay) -> None:
    loader = loader_of()
    list(loader)
    workers = loader._iterator._workers  # type: ignore[union-attr]  # it is kept
    draws.at_boundary()
    del loader
    next(iter(loader_of()))  # what the latest draw has left goes with the next one
    assert not any(worker.is_alive() for worker in workers)
    assert not draws.kept_workers(set(map(id, draws.tracks)))


def test_another_loader_stands_for_one_of_which_the_script_has_kept_the_iterator_alone(draws: IteratorReplay) -> None:
    iterator = iter(loader_of(shuffle=False))
    next(iterator)
    loader = draws.tracks[iterator].loader
    assert loader is draws.tracks[iterator].loader
    assert loader.batch_size == 2
    assert loader.dataset is iterator._dataset
    assert [[item[0] for item in batch] for batch in values(iterator)] == [[2, 3], [4, 5], [6, 7]]


class KeepingIterator(DataLoader[Any]):
    """It makes its iterator itself, as loaders do that never end."""

    own: Any = None

    def begin_again(self) -> Any:
        self.own = self._get_iterator()
        return self.own


def test_the_workers_of_an_iterator_end_that_a_loader_has_made_anew(draws: IteratorReplay) -> None:
    loader = KeepingIterator(Noisy(), num_workers=1, persistent_workers=True)
    workers = []
    for _ in range(3):
        iterator = loader.begin_again()
        workers += iterator._workers
        next(iterator)
        draws.at_boundary()
    next(iterator)
    assert [worker.is_alive() for worker in workers] == [False, False, True]
