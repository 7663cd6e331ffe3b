from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import numpy
import pytest
import torch
from support.host_state import take
from torch.utils.data import DataLoader, Dataset, Sampler

from torchrelay.shim.capture.models.modules import ModuleTrees
from torchrelay.shim.capture.records import after_draw, undo
from torchrelay.shim.capture.walks.rewalk import Rewalk


class Lazy(Sampler[int]):
    def __init__(self) -> None:
        self.random, self.order, self.count = random.Random(5), [*range(8)], 0
        self.more = {"numpy": numpy.random.default_rng(1), "seen": {1}}
        self.generator = torch.Generator().manual_seed(2)

    def __iter__(self) -> Iterator[int]:
        return iter(self.order)


class Noisy(Dataset[int]):
    def __init__(self) -> None:
        self.random, self.asked = numpy.random.default_rng(3), 0

    def __getitem__(self, index: int) -> int:
        return index


def change(sampler: Lazy, data: Noisy) -> None:
    sampler.random.shuffle(sampler.order)
    sampler.count += 1
    sampler.more["numpy"].random()
    sampler.more["seen"].add(len(sampler.more["seen"]) + 1)
    torch.rand(1, generator=sampler.generator)
    data.random.random()
    data.asked += 1


def all_of(sampler: Lazy, data: Noisy) -> list[Any]:
    more = sampler.more["numpy"].bit_generator.state, {*sampler.more["seen"]}
    own = sampler.random.getstate(), [*sampler.order], sampler.count, more, sampler.generator.get_state().tolist()
    return [*own, data.random.bit_generator.state, data.asked]


def test_a_draw_from_the_record_leaves_samplers_and_data_as_the_draw_itself_did() -> None:
    data = Noisy()
    loader = DataLoader(data, sampler=(sampler := Lazy()))
    state = take({"loader": loader})
    before = all_of(sampler, data)
    change(sampler, data)
    after, again = all_of(sampler, data), after_draw.left_behind(state, [loader])
    change(sampler, data)
    undo.undo(state)
    assert all_of(sampler, data) == before

    again()

    assert all_of(sampler, data) == after
    again()
    assert all_of(sampler, data) == after


def test_generators_are_left_so_wherever_they_are() -> None:
    holder = {"deep": [random.Random(1)]}
    state = take({"holder": holder})
    holder["deep"][0].random()
    after, again = holder["deep"][0].getstate(), after_draw.left_behind(state, [])
    undo.undo(state)
    again()
    assert holder["deep"][0].getstate() == after
    assert after_draw.generator_states(state) == {id(holder["deep"][0]): after}


def test_what_no_draw_changes_is_left_alone() -> None:
    counters = {"step": 1}
    loader = DataLoader(Noisy(), sampler=Lazy())
    state = take({"loader": loader, "counters": counters, "model": torch.nn.Linear(2, 2)})
    counters["step"] = 2
    again = after_draw.left_behind(state, [loader])
    undo.undo(state)
    again()
    assert counters == {"step": 1}


@pytest.mark.parametrize("drop", [True, False])
def test_a_generator_that_is_gone_is_no_generator_any_more(drop: bool) -> None:
    namespace: dict[str, Any] = {"random": [random.Random(1)]}
    trees = ModuleTrees()
    state = take(namespace, trees)
    assert len(state.generators) == 1
    if drop:
        namespace["random"].pop()
    namespace["random"].append(random.Random(2))
    now = Rewalk(trees, state, at_gate=False).run([], {"script": namespace})
    assert len(now.generators) == (1 if drop else 2)
