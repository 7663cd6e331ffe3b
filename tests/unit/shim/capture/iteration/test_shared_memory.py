"""Numbers that worker processes may be writing to are neither told nor put back while these live."""

from __future__ import annotations

import multiprocessing
from typing import Any

import torch
from torch.utils.data import DataLoader, TensorDataset

from torchrelay.shim.capture.iteration import shared_memory


class Counting:
    def __init__(self) -> None:
        self.counter = multiprocessing.Value("i", 7)

    def __call__(self, samples: list[Any]) -> list[Any]:
        return samples


def test_what_workers_write_to_is_left_alone_while_they_live() -> None:
    collate = Counting()
    loader: Any = DataLoader(TensorDataset(torch.arange(2.0)), num_workers=1, collate_fn=collate)
    before = shared_memory.state_of(collate.counter)
    assert before is not None
    iterator = iter(loader)
    shared_memory.begins(iterator, shared_memory.below(loader).values())
    assert shared_memory.state_of(collate.counter) is None
    collate.counter.value = 9
    shared_memory.put_state(collate.counter, before)
    assert collate.counter.value == 9
    assert len([*iterator]) == 2
    shared_memory.put_state(collate.counter, before)
    assert collate.counter.value == 7


def test_shared_numbers_are_put_to_their_place_below_another_loader() -> None:
    one, other = Counting(), Counting()
    one.counter.value = 11
    first, second = (DataLoader(TensorDataset(torch.arange(2.0)), collate_fn=collate) for collate in (one, other))
    shared_memory.put(second, shared_memory.content(shared_memory.below(first)))
    assert other.counter.value == 11
