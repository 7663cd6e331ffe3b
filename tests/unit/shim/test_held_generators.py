"""Generators kept in variables, on the CPython that runs the tests; seen on 3.10, 3.11, 3.12 and 3.13."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from support.failing_guard import FAILING
from support.host_state import take
from torch.utils.data import DataLoader, Dataset, RandomSampler

from torchrelay.protocol.errors import StateMismatchError
from torchrelay.shim import sites
from torchrelay.shim.adapters import data_loader, held_generators, lead_iterators
from torchrelay.shim.capture.kinds import Kind
from torchrelay.shim.capture.modules import ModuleTrees
from torchrelay.shim.capture.rewalk import Rewalk
from torchrelay.shim.draws import Draws


class Rows(Dataset[Any]):
    """Items are made with the process's generators, as augmentation does."""

    def __len__(self) -> int:
        return 10

    def __getitem__(self, place: int) -> tuple[torch.Tensor, int]:
        return torch.tensor([float(place)]) + torch.rand(1), place


class Epochs(RandomSampler):
    epoch = 0

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def __iter__(self) -> Iterator[int]:
        order = torch.randperm(10, generator=torch.Generator().manual_seed(self.epoch))
        return iter(order.tolist())


@pytest.fixture(autouse=True)
def _this_file_is_the_scripts() -> Iterator[None]:
    sites.INSTRUMENTED_FILES.add(__file__)
    yield
    sites.INSTRUMENTED_FILES.discard(__file__)


@pytest.fixture
def draws() -> Iterator[Draws]:
    made = Draws()
    made.live = made.recording = True
    originals = {
        name: getattr(data_loader.LoaderIter, name) for name in ("__init__", "__next__", "_reset", "_next_index")
    }
    data_loader.install(made, lambda: True, FAILING)
    yield made
    for name, original in originals.items():
        setattr(data_loader.LoaderIter, name, original)


def loader() -> DataLoader[Any]:
    return DataLoader(Rows(), batch_size=3, shuffle=True)


def endless() -> Any:
    def endless(batches: DataLoader[Any]) -> Iterator[Any]:
        while True:
            yield from batches

    return endless(loader())


def in_a_loop() -> Any:
    def moved(batches: DataLoader[Any], device: str) -> Iterator[Any]:
        while True:
            for x, y in batches:
                yield x.to(device), y.to(device)

    return moved(loader(), "cpu")


def with_epochs() -> Any:
    sampler = Epochs(Rows())
    batches = DataLoader(Rows(), batch_size=3, sampler=sampler)

    def epochs() -> Iterator[Any]:
        epoch = 0
        while True:
            sampler.set_epoch(epoch)
            yield from batches
            epoch += 1

    return epochs()


def some_epochs() -> Any:
    def limited(batches: DataLoader[Any]) -> Iterator[Any]:
        for _ in range(4):
            for batch in batches:  # noqa: UP028 - as people write it
                yield batch

    return limited(loader())


def with_workers() -> Any:
    def endless(batches: DataLoader[Any]) -> Iterator[Any]:
        while True:
            yield from batches

    return endless(DataLoader(Rows(), batch_size=3, shuffle=True, num_workers=1))


def by_next() -> Any:
    def restarted(batches: DataLoader[Any]) -> Iterator[Any]:
        it = iter(batches)
        while True:
            try:
                batch = next(it)
            except StopIteration:
                it = iter(batches)
                batch = next(it)
            yield batch

    return restarted(loader())


def without_a_loader() -> Any:
    def numbers(count: int) -> Iterator[Any]:
        drawn = 0
        while True:
            drawn += 1
            yield torch.randint(0, count, (2,)), torch.tensor(drawn)

    return numbers(100)


KINDS: dict[str, Callable[[], Any]] = {
    "yield from": endless,
    "a loop": in_a_loop,
    "epochs": with_epochs,
    "a number of epochs": some_epochs,
    "next": by_next,
    "no loader": without_a_loader,
}


def journal(generator: Any, draws: Draws) -> tuple[dict[str, Any], Any]:
    found = held_generators.stand(generator)
    assert found is not None
    return dict(found.content), draws.record(found.source) if found.source is not None else None


def drawn(generator: Any, count: int) -> list[Any]:
    return [[part.tolist() for part in next(generator)] for _ in range(count)]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("count", [0, 1, 3, 4, 5, 9])
def test_a_joiners_yields_what_the_lost_ranks_would_have(draws: Draws, kind: str, count: int) -> None:
    torch.manual_seed(1)
    lost = KINDS[kind]()
    for _ in range(count):
        torch.rand(2)  # as dropout does
        next(lost)
    place, record = journal(lost, draws)
    at_boundary = torch.get_rng_state()
    expected = drawn(lost, 6)
    torch.manual_seed(2)
    joiner = KINDS[kind]()
    lead_iterators.lead_generator(draws, joiner, place, record)
    assert journal(joiner, draws)[0] == place
    torch.set_rng_state(at_boundary)
    assert drawn(joiner, 6) == expected
    assert not draws.expected


@pytest.mark.slow
def test_items_of_workers_are_drawn_again(draws: Draws) -> None:
    torch.manual_seed(1)
    lost = with_workers()
    drawn(lost, 6)
    place, record = journal(lost, draws)
    at_boundary = torch.get_rng_state()
    expected = drawn(lost, 4)
    joiner = with_workers()
    lead_iterators.lead_generator(draws, joiner, place, record)
    torch.set_rng_state(at_boundary)
    assert drawn(joiner, 4) == expected


def test_one_that_is_over_is_closed(draws: Draws) -> None:
    lost, joiner = some_epochs(), some_epochs()
    assert len(list(lost)) == 16
    lead_iterators.lead_generator(draws, joiner, *journal(lost, draws))
    assert list(joiner) == []


def test_one_that_set_up_has_drawn_from_is_refused(draws: Draws) -> None:
    lost, joiner = endless(), endless()
    drawn(lost, 2)
    drawn(joiner, 1)
    place, record = journal(lost, draws)
    place["variable epoch"] = 1
    with pytest.raises(StateMismatchError, match="was drawn from where the new process begins"):
        lead_iterators.lead_generator(draws, joiner, place, record)


class Reader:
    def __init__(self) -> None:
        self.seen = 0

    def counts(self) -> Iterator[int]:
        while True:
            self.seen += 1
            yield self.seen

    def calls(self) -> Iterator[int]:
        while True:
            yield self.next()

    def next(self) -> int:
        self.seen += 1
        return self.seen

    def buffers(self) -> Iterator[int]:
        kept = [1]
        while True:
            yield kept[0]

    def nested(self) -> Iterator[int]:
        yield from self.counts()

    def zipped(self) -> Iterator[Any]:
        yield from zip(loader(), loader())


@pytest.mark.parametrize("name", ["counts", "calls", "buffers", "nested", "zipped"])
def test_what_leaves_a_trace_or_has_more_state_is_named_as_before(name: str) -> None:
    generator = getattr(Reader(), name)()
    next(generator)
    assert held_generators.stand(generator) is None
    state = take({"stream": generator})
    assert [kind.kind for kind in state.nodes[:1]] == [Kind.GLOBALS]
    assert [found for found, _ in state.iterators] == ["script.stream (generator)"]
    assert id(generator) not in state.index


def test_a_walk_has_its_place_and_what_it_was_given_and_a_later_one_sees_it_move(draws: Draws) -> None:
    stream = in_a_loop()
    namespace, trees = {"stream": stream}, ModuleTrees()
    state = take(namespace, trees)
    assert {Kind.GENERATOR, Kind.LOADER, Kind.DATASET} <= {node.kind for node in state.nodes}
    next(stream)
    later = Rewalk(trees, state, at_gate=False).run([], {"script": namespace})
    (then, now) = (s.nodes[s.index[id(stream)]].content["at"] for s in (state, later))
    assert then == -1
    assert now > 0


def test_one_that_a_running_loop_draws_from_is_left_to_the_loop(draws: Draws) -> None:
    stream, trees = endless(), ModuleTrees()
    trees.of_loops = {id(stream)}
    assert id(stream) not in take({"stream": stream}, trees).index


def test_what_was_drawn_past_us_cannot_come_again(draws: Draws) -> None:
    stream = endless()
    draws.draw(stream, next)
    source = journal_source(stream)
    draws.held = {id(source)}
    draws.rewind()
    draws.draw(stream, next)
    assert not draws.past_us
    next(stream)
    assert draws.past_us
    with pytest.raises(StateMismatchError, match="other means than next"):
        draws.rewind()


def journal_source(generator: Any) -> Any:
    found = held_generators.stand(generator)
    assert found is not None
    return found.source


def permuted(rows: torch.Tensor) -> Iterator[torch.Tensor]:
    while True:
        order = torch.randperm(len(rows))
        for place in range(0, len(rows), 2):
            yield rows[order[place : place + 2]]


def test_a_loop_over_what_draws_at_random_itself_is_told_and_one_over_a_loader_is_not(draws: Draws) -> None:
    own, of_loader = permuted(torch.arange(4)), endless()
    for iterator in (own, of_loader):
        draws.draw(iterator, next)  # the first item: the generators are those of the loop's beginning
    draws.in_loop = lambda: True
    seen = []
    for _ in range(6):
        torch.rand(2)
        seen.append((draws.is_random(own), draws.is_random(of_loader)))
        draws.draw(own, next)
        draws.draw(of_loader, next)
    assert seen == [(False, False), (False, False), *[(True, False)] * 4]
    draws.forget_cycles(set())
    assert not draws.is_random(own)
