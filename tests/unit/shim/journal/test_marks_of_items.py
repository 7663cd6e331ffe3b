"""An item of a training loop is marked where it is not drawn anew: whoever is led to it compares what it has."""

from __future__ import annotations

import copy
from typing import Any

import numpy
import pytest
import torch
from support.loop_script import LoopScript

from torchrelay.shim.capture.values import item_mark
from torchrelay.shim.journal import last_draw, payload

TRAINING = """
    def drawn():
        for number in range(4):
            yield f"item {number}"
    def train():
        for item in ITEMS or drawn():
            step()
    train()
"""


@pytest.fixture
def links(monkeypatch: pytest.MonkeyPatch) -> list[payload.LinkRecord]:
    """The training loop's, of each boundary."""
    found: list[payload.LinkRecord] = []
    make = payload.BoundaryJournal

    def made(boundary: int, settled: bool, records: list[payload.LinkRecord], *rest: Any) -> payload.BoundaryJournal:
        found.append(records[-1])
        return make(boundary, settled, records, *rest)

    monkeypatch.setattr(payload, "BoundaryJournal", made)
    return found


def test_an_item_is_marked_whose_draw_cannot_be_told(
    script: LoopScript, links: list[payload.LinkRecord], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(last_draw, "before_draw", lambda *_: None)
    script.run(TRAINING, ITEMS=None)
    assert [link.mark for link in links] == [item_mark.mark_of(f"item {number}") for number in range(4)]


def test_one_that_is_drawn_anew_brings_its_own_mark(script: LoopScript, links: list[payload.LinkRecord]) -> None:
    script.run(TRAINING, ITEMS=None)
    assert [link.draw is None for link in links] == [True, False, False, False], "the first draw is not watched"
    assert [link.mark == b"" for link in links] == [False, True, True, True]


def test_items_of_any_other_iterator_are_marked(script: LoopScript, links: list[payload.LinkRecord]) -> None:
    script.run(TRAINING, ITEMS=["a", "b"])
    assert [link.mark for link in links] == [item_mark.mark_of(item) for item in "ab"]


class Batch:
    """As a tokenizer's batches: what it has lies in a dict of its own."""

    def __init__(self, ids: Any, number: int) -> None:
        self.data, self.number = {"ids": ids}, number


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ({"x": torch.arange(9)}, {"x": torch.arange(9) + 1}),
        ([1, 2, "a"], [1, 2, "b"]),
        ((numpy.arange(6.0),), (numpy.arange(6.0) * 2,)),
        (Batch(torch.zeros(3), 1), Batch(torch.ones(3), 1)),
        ([Batch(numpy.zeros(3), 1)], [Batch(numpy.zeros(4), 1)]),
    ],
)
def test_another_item_has_another_mark(one: Any, other: Any) -> None:
    assert item_mark.mark_of(one) == item_mark.mark_of(copy.deepcopy(one))
    assert item_mark.mark_of(one) != item_mark.mark_of(other)


def test_times_and_the_numbers_of_objects_are_left_out() -> None:
    assert item_mark.mark_of([1, 0.5]) == item_mark.mark_of([1, 0.25])
    assert item_mark.mark_of(Batch(torch.zeros(3), 1)) == item_mark.mark_of(Batch(torch.zeros(3), 2))


def test_only_the_first_values_of_many_are_looked_at() -> None:
    many = list(range(10 * item_mark._MARKED))
    assert item_mark.mark_of(many) == item_mark.mark_of([*many[:-1], "another"])
    assert item_mark.mark_of(many) != item_mark.mark_of([*many[:-1][::-1], "another"])


def test_what_training_has_and_changes_is_no_batch() -> None:
    batch = Batch(torch.zeros(3), 1)
    for known in (batch, batch.data["ids"]):
        assert item_mark.mark_of([1, batch], {id(known)}) == b""
    assert item_mark.mark_of([1, batch], {1}) != b""
