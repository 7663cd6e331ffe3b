"""Samplers that go on choosing the order while others draw random numbers, too."""

from __future__ import annotations

import random
from collections.abc import Iterator

import numpy
import pytest
import torch
from support.noisy_loader import Noisy, loader_of, values
from torch.utils.data import DataLoader, IterableDataset, Sampler

from torchrelay.protocol.errors import StateMismatchError
from torchrelay.shim.capture import rng
from torchrelay.shim.capture.iteration import loader_order
from torchrelay.shim.data import lead_iterators, sampler_rng_log
from torchrelay.shim.data.iterator_replay import IteratorReplay


class Endless(Sampler[int]):
    """A new order whenever all have been."""

    def __init__(self, generator: torch.Generator | None = None) -> None:
        self.generator = generator

    def __iter__(self) -> Iterator[int]:
        while True:
            yield from torch.randperm(12, generator=self.generator).tolist()


ENDLESS = {
    "the process's": lambda: Endless(),
    "its own": lambda: Endless(torch.Generator().manual_seed(5)),
}


@pytest.mark.parametrize("drawn", [7, 12, 16])
@pytest.mark.parametrize("kind", ENDLESS)
def test_a_joiners_sampler_draws_the_orders_that_were_chosen_between_steps(
    draws: IteratorReplay, kind: str, drawn: int
) -> None:
    torch.manual_seed(1)
    sampler = ENDLESS[kind]()
    loader = loader_of(sampler=sampler)
    recorded = iter(loader)
    for _ in range(drawn):
        next(recorded)
        torch.rand(1)
        if sampler.generator is not None:
            torch.rand(1, generator=sampler.generator)
    record = draws.record(recorded)
    assert record is not None
    assert len(record.turns) == (drawn - 1) // 6
    at, order = rng.capture(), loader_order.order_of(loader)
    rest = [next(recorded) for _ in range(14)]

    torch.manual_seed(2)
    other = loader_of(sampler=ENDLESS[kind]())
    joiner, _ = lead_iterators.rebuild(draws, other, record, None)
    rng.restore(at)
    loader_order.set_order(other, order)
    assert values([next(joiner) for _ in range(14)]) == values(rest)
    assert not draws.cannot_lead()


def test_a_generator_that_a_sampler_shares_with_others_and_that_cannot_be_put_back_is_noticed(
    draws: IteratorReplay,
) -> None:
    generator = random.Random(3)

    class Shuffled(Sampler[int]):
        def __iter__(self) -> Iterator[int]:
            while True:
                order = [*range(12)]
                generator.shuffle(order)
                yield from order

    draws.other_generators = lambda: {id(generator): generator.getstate()}
    alone = iter(loader_of(sampler=Shuffled()))
    for _ in range(8):
        next(alone)
    assert not draws.cannot_lead()
    for _ in range(6):
        generator.random()
        next(alone)
    assert draws.cannot_lead()


def test_an_array_in_the_state_of_a_generator_is_compared_by_content(draws: IteratorReplay) -> None:
    generator = numpy.random.RandomState(3)
    draws.other_generators = lambda: {id(generator): generator.get_state()}

    def is_noticed_where_items_draw_from(drawn_from: numpy.random.RandomState) -> bool:
        class Jittered(Noisy):
            def __getitem__(self, index: int) -> torch.Tensor:
                drawn_from.random_sample()
                return super().__getitem__(index)

        iterator = iter(DataLoader(Jittered(), batch_size=2))
        next(iterator)
        return bool(draws.cannot_lead())

    assert not is_noticed_where_items_draw_from(numpy.random.RandomState(4))
    assert is_noticed_where_items_draw_from(generator)


def test_a_sampler_that_draws_among_others_too_often_is_noticed(draws: IteratorReplay) -> None:
    class Restless(Sampler[int]):
        def __iter__(self) -> Iterator[int]:
            while True:
                yield int(torch.randint(12, ()))

    iterator = iter(DataLoader(Noisy(), batch_size=1, sampler=Restless()))
    for _ in range(sampler_rng_log.MOST + 1):
        next(iterator)
        torch.rand(1)
    assert not draws.cannot_lead()
    next(iterator)
    assert draws.cannot_lead()


class Picky(IterableDataset[int]):
    """Lets a random number decide what comes next."""

    def __iter__(self) -> Iterator[int]:
        at = 0
        while True:
            at += 1 + int(torch.randint(3, ()))
            yield at


def test_a_joiners_stream_goes_on_as_the_recorded_one_where_steps_use_its_generator(draws: IteratorReplay) -> None:
    torch.manual_seed(1)
    recorded = iter(DataLoader(Picky(), batch_size=2))
    for _ in range(20):
        next(recorded)
        torch.rand(1)
    record, at = draws.record(recorded), rng.capture()
    assert record is not None
    rest = [next(recorded).tolist() for _ in range(4)]

    torch.manual_seed(2)
    joiner, _ = lead_iterators.rebuild(draws, DataLoader(Picky(), batch_size=2), record, None)
    rng.restore(at)
    assert [next(joiner).tolist() for _ in range(4)] == rest


def test_a_joiners_stream_that_comes_to_another_item_is_refused(draws: IteratorReplay) -> None:
    torch.manual_seed(1)
    recorded = iter(DataLoader(Picky(), batch_size=2))
    for _ in range(sampler_rng_log.MOST + 10):
        next(recorded)
        torch.rand(1)
    record = draws.record(recorded)
    assert record is not None
    assert len(record.turns) == sampler_rng_log.MOST
    assert not draws.cannot_lead()
    with pytest.raises(StateMismatchError, match="the data set Picky, drawn from anew, yields another item here"):
        lead_iterators.rebuild(draws, DataLoader(Picky(), batch_size=2), record, None)
