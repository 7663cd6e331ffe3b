from __future__ import annotations

import pickle
import random
from collections import deque
from collections.abc import Iterator
from typing import Any

import numpy
import pytest
import torch
from torch.utils.data import DataLoader, Dataset, IterableDataset, RandomSampler, Sampler, Subset, TensorDataset

from torchrelay.shim.capture.state.host_state import Deep
from torchrelay.shim.capture.state.random_below import MOST_OBJECTS, follow, random_below
from torchrelay.shim.capture.values.by_identity import ByIdentity
from torchrelay.shim.data.data_state import MOST_ITEMS, MOST_KEPT_BYTES, ChangedByDraws, DataState, SamplerState


class Own(Sampler[int]):
    def __init__(self, count: int = 8) -> None:
        self.order, self.random = [*range(count)], random.Random(1)
        self.queue, self.known, self.weights = deque([1]), {1}, {"a": 1.0}
        self.array, self.tensor = numpy.arange(count), torch.arange(count)
        self.rebound: list[int] | None = [*range(count)]

    def __iter__(self) -> Iterator[int]:
        self.random.shuffle(self.order)
        self.queue.append(2)
        self.known.add(2)
        self.weights["b"] = 2.0
        self.array[:] = self.array[::-1].copy()
        self.tensor.copy_(self.tensor.flip(0))
        self.rebound = [*range(3)]
        yield from self.order

    def all(self) -> Any:
        arrays = self.array.tolist(), self.tensor.tolist(), self.rebound and [*self.rebound]
        return [*self.order], self.random.getstate(), [*self.queue], {*self.known}, {**self.weights}, arrays


@pytest.mark.parametrize("count", [8, MOST_ITEMS + 1])
def test_a_sampler_is_put_to_how_it_was_when_it_was_first_asked(count: int) -> None:
    loader = DataLoader(range(count), sampler=(sampler := Own(count)))  # type: ignore[arg-type, var-annotated]  # a range will do
    before, state = sampler.all(), SamplerState(loader)
    next(iter(loader))
    taken = state.taken()
    assert sampler.all() != before
    sampler.rebound = None  # as set-up may have left it
    order, array, tensor = sampler.order, sampler.array, sampler.tensor
    SamplerState(loader).put(taken)
    assert sampler.all() == before
    assert sampler.order is order
    assert sampler.array is array
    assert sampler.tensor is tensor


def test_long_containers_that_a_sampler_does_not_change_are_not_written_down() -> None:
    loader = DataLoader(range(8), sampler=(sampler := Own()))  # type: ignore[arg-type, var-annotated]  # the same
    sampler.lengths = [*range(MOST_ITEMS + 1)]  # type: ignore[attr-defined]  # it has no such attribute otherwise
    names = {name for _, containers, _ in pickle.loads(SamplerState(loader).taken())[0] for name in containers}
    assert "order" in names
    assert "lengths" not in names


class Wrapping(Sampler[int]):
    """Has its order from another sampler, as those do that frameworks put around a script's."""

    def __init__(self, below: Any) -> None:
        self.below = below

    def __iter__(self) -> Iterator[int]:
        return iter(self.below)


class Shuffled(Sampler[int]):
    def __init__(self) -> None:
        self.draw = random.Random(3)
        self.order = [*range(8)]

    def __iter__(self) -> Iterator[int]:
        self.draw.shuffle(self.order)
        return iter(self.order)


def test_what_a_wrapped_sampler_shuffles_is_put_back_with_its_generator() -> None:
    loader = DataLoader(range(8), sampler=Wrapping(Shuffled()))  # type: ignore[arg-type, var-annotated]  # the same
    state = SamplerState(loader)
    order = [*loader.sampler]
    taken = state.taken()
    assert [*loader.sampler] != order
    other = DataLoader(range(8), sampler=Wrapping(Shuffled()))  # type: ignore[arg-type, var-annotated]  # the same
    [*other.sampler]  # noqa: B018 - it has come further
    SamplerState(other).put(taken)
    assert [*other.sampler] == order


class Resumable(IterableDataset[int]):
    def __init__(self) -> None:
        self.place: Any = None
        self.skipped, self.passes = 0, 1
        self.pending: list[Any] = []
        self.samples = [*range(MOST_ITEMS + 1)]

    def goes_on(self) -> None:
        self.place, self.skipped, self.pending = (2, ("shard", 3)), 5, [{"shard": 1}, {"shard": 2}]

    def __iter__(self) -> Iterator[int]:
        self.place, self.skipped = None, 0
        while self.pending:
            self.samples.append(0)
            yield self.pending.pop()["shard"]


def test_what_a_stream_uses_up_in_its_first_draw_is_put_back_for_it() -> None:
    loader = DataLoader(stream := Resumable(), batch_size=None)
    stream.goes_on()
    state = SamplerState(loader, is_stream=True)
    assert next(iter(loader)) == 2
    taken = state.taken()
    other = DataLoader(another := Resumable(), batch_size=None)
    SamplerState(other, is_stream=True).put(taken)
    assert (another.place, another.skipped, another.pending) == ((2, ("shard", 3)), 5, [{"shard": 1}, {"shard": 2}])
    assert (another.passes, len(another.samples)) == (1, MOST_ITEMS + 1)


def test_a_stream_that_uses_up_nothing_costs_no_journal_anything() -> None:
    loader = DataLoader(Resumable(), batch_size=None)
    state = SamplerState(loader, is_stream=True)
    assert list(loader) == []
    assert state.taken() == b""


def test_samplers_of_torch_have_nothing_else() -> None:
    data = TensorDataset(torch.zeros(4, 1))
    for loader in (
        DataLoader(data, shuffle=True),
        DataLoader(data, sampler=RandomSampler(data, generator=torch.Generator())),
    ):
        assert SamplerState(loader).taken() == b""


class Transform(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.random = numpy.random.default_rng(2)


class Data(Dataset[int]):
    def __init__(self) -> None:
        self.own, self.asked = random.Random(3), 0
        self.transforms = {"all": [Transform(), Transform()]}
        self.again = self.transforms["all"][0].random

    def __getitem__(self, index: int) -> int:
        return index


def test_the_generators_of_a_data_sets_transforms_are_found_and_put_back() -> None:
    data = Data()
    state = DataState(DataLoader(data), ByIdentity())
    before = state.take()
    data.asked = 5
    data.own.random()
    for transform in data.transforms["all"]:
        transform.random.random()
    changed = state.take()
    assert [a != b for a, b in zip(before[1], changed[1])] == [True] * 3
    state.put(before)
    assert state.take() == before
    assert data.asked == 0


def test_a_data_set_in_other_processes_has_a_state_of_its_own_there() -> None:
    assert DataState(DataLoader(Data(), num_workers=1), ByIdentity()).take() == ((), (), ())


def test_what_is_as_large_as_data_is_not_searched() -> None:
    generator = random.Random(1)
    assert random_below({"few": [generator]}) == {Deep(("few", 0)): generator}
    assert random_below({"many": [generator, *range(100)]}) == {}
    assert random_below([[[object() for _ in range(30)] for _ in range(30)], [[generator]]]) == {}
    assert MOST_OBJECTS < 900


def test_a_way_that_leads_nowhere_is_noticed() -> None:
    with pytest.raises((LookupError, AttributeError, TypeError)):
        follow(Data(), Deep(("transforms", "all", 2, "random")))


class Caching(Dataset[torch.Tensor]):
    """As hifi-gan's: reads a file in each second draw, and cuts another part out of it in the others."""

    def __init__(self) -> None:
        self.cached: Any = None
        self.uses = 0
        self.pool: list[int] = []

    def __getitem__(self, index: int) -> torch.Tensor:
        if self.uses == 0:
            self.cached, self.uses = torch.arange(index, index + 4.0), 1
        else:
            self.uses -= 1
        self.pool.append(index)
        return self.cached[self.uses :]


def test_what_draws_change_goes_with_the_plain_attributes() -> None:
    for outer in (lambda data: data, lambda data: Subset(data, range(9))):
        data, there = Caching(), Caching()
        state, known = (
            DataState(DataLoader(outer(data)), ByIdentity()),
            DataState(DataLoader(outer(there)), ByIdentity()),
        )
        for index in (3, 3, 5):
            state.take()
            data[index]
        taken = pickle.loads(pickle.dumps(state.take()))
        expected = data[7].tolist()
        known.put(taken)
        assert there.pool == [3, 3, 5]
        assert there[7].tolist() == expected


def test_what_draws_have_changed_is_known_in_the_next_epoch() -> None:
    data, known = Caching(), ByIdentity[ChangedByDraws]()
    state = DataState(DataLoader(data), known)
    for index in (1, 2):
        state.take()
        data[index]
    state.take()
    assert {name for _, name, _ in DataState(DataLoader(data), known).take()[2]} == {"cached", "pool"}


def test_what_grows_too_large_is_written_down_no_more() -> None:
    data = Caching()
    state = DataState(DataLoader(data), ByIdentity())
    state.take()
    data.pool += range(MOST_KEPT_BYTES)
    data[1]
    assert [name for _, name, _ in state.take()[2]] == ["cached"]
    data.pool.clear()
    assert [name for _, name, _ in state.take()[2]] == ["cached"]
