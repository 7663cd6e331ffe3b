"""An item of a training loop is marked where it is not drawn anew: whoever is led to it compares what it has."""

from __future__ import annotations

from typing import Any

import pytest
from support.loop_script import LoopScript

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
    assert [link.mark for link in links] == [last_draw.mark_of(f"item {number}") for number in range(4)]


def test_one_that_is_drawn_anew_brings_its_own_mark(script: LoopScript, links: list[payload.LinkRecord]) -> None:
    script.run(TRAINING, ITEMS=None)
    assert [link.draw is None for link in links] == [True, False, False, False], "the first draw is not watched"
    assert [link.mark == b"" for link in links] == [False, True, True, True]


def test_items_of_any_other_iterator_are_marked(script: LoopScript, links: list[payload.LinkRecord]) -> None:
    script.run(TRAINING, ITEMS=["a", "b"])
    assert [link.mark for link in links] == [last_draw.mark_of(item) for item in "ab"]
