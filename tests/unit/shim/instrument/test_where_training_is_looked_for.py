"""Which loops can be the training loop at all: not those that a data loader runs, and few of an installed package's."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from support.loop_script import LoopScript
from torch.utils.data import DataLoader

from torchrelay.shim.instrument import loop_tracker

WEIGHT = torch.zeros(1, requires_grad=True)


def backward() -> None:
    WEIGHT.sum().backward()


def run(script: LoopScript, source: str, *, package: bool = False, **names: Any) -> dict[str, Any]:
    def computed() -> None:
        script.tracker.computing()
        backward()

    return script.run(source, package=package, backward=computed, **names)


TRAINER = """
def advance(batches):
    for batch in batches:
        backward()
        step()
def each_epoch():
    for epoch in range(3):
        advance(range(4))
each_epoch()
"""


def test_a_packages_loop_is_protected_from_its_first_head_on(script: LoopScript) -> None:
    run(script, TRAINER.replace("each_epoch", "run_epochs"), package=True)
    assert script.numbers_by_line() == {7: [0], 3: [*range(1, 12)]}


@pytest.mark.parametrize("package", [True, False])
def test_a_loop_stands_in_for_training_a_few_times_only(script: LoopScript, package: bool) -> None:
    source = (
        """
def run_once():
    for part in range(2):
        look_at_batch(part)
def look_at_batch(part): pass
"""
        + "run_once()\n" * 10
    )
    run(script, source, package=package)
    assert script.boundaries == [(0, 3)] * 2


def test_a_loop_that_seems_to_train_stands_in_each_time_it_begins(script: LoopScript) -> None:
    source = (
        """
def run_once(train):
    for part in range(2):
        if train:
            backward()
            step()
"""
        + "run_once(False)\n" * 5
        + "run_once(True)\n"
    )
    run(script, source)
    assert script.boundaries == [(0, 3)] * 6 + [(1, 3)]


def test_a_packages_loop_that_never_is_around_a_step_is_forgotten(script: LoopScript) -> None:
    tokens: list[int] = []
    source = """
def batches_of(n):
    for part in range(2): f(part)
for n in range(100): batches_of(n)
"""
    run(script, source, package=True, f=lambda part: tokens.append(len(script.tracker.stack)))
    assert tokens == [1] * 2 * loop_tracker._MOST_ENTRIES + [0] * 2 * (100 - loop_tracker._MOST_ENTRIES)


def test_loops_in_a_collate_function_are_no_training_loops(script: LoopScript) -> None:
    source = """
def collate(items):
    for item in items: seen(item)
    return items
def train():
    for batch in DataLoader(range(4), batch_size=2, collate_fn=collate):
        backward()
        step()
next(iter(DataLoader(range(4), batch_size=2, collate_fn=collate)))
train()
"""
    run(script, source, DataLoader=DataLoader, seen=lambda item: None)
    assert script.numbers_by_line() == {6: [0, 1]}


def test_loops_that_a_generator_of_the_script_runs_are_no_training_loops(script: LoopScript) -> None:
    source = """
def prepared(n):
    for part in range(3): seen(part)
    return n
def batches():
    for n in range(3):
        yield prepared(n)
stream = batches()
next(stream)
def train():
    for batch in stream:
        backward()
        step()
train()
"""
    run(script, source, seen=lambda part: None)
    assert script.numbers_by_line() == {11: [0, 1]}
