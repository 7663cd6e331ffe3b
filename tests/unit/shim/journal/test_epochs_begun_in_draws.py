"""A draw that is done again begins epochs of kept workers as the lost rank's did, and needs no leading."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from support.loop_script import LoopScript
from unit.shim.capture.iteration.test_kept_workers import draws, loader_of, values

from torchrelay.shim.capture import rng
from torchrelay.shim.data.iterator_replay import IteratorReplay
from torchrelay.shim.journal import last_draw, payload

__all__ = ["draws"]

TRAINING = """
    import random
    def drawn():
        for number in range(3):
            yield number, random.random()
    def train():
        for epoch in range(2):
            for item in drawn():
                step()
    train()
"""


def test_epochs_of_kept_workers_are_told_of_from_the_second_one_on(draws: IteratorReplay) -> None:
    torch.manual_seed(5)
    loader = loader_of()
    draws.at_boundary()
    values(loader)
    assert draws.began == [None]
    values(loader)
    first, second = draws.began
    assert first is None
    assert second is not None
    assert second.epoch is draws.tracks[loader._iterator].epoch
    assert second.drawn == 0
    draws.at_boundary()
    assert draws.began == []


def test_epochs_that_begin_in_a_draw_stand_in_its_journal(draws: IteratorReplay) -> None:
    loader = loader_of()
    draws.at_boundary()
    values(loader)
    values(loader)
    written = last_draw.WrittenDraw({}, rng.capture(), {}, b"mark", (), tuple(draws.began))
    assert last_draw.WrittenDraw.of(written.plain()) == written


def test_a_generator_that_is_put_to_its_place_may_draw_from_the_process_s_generators(
    script: LoopScript, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its second draw is done before it is known that its loop trains."""
    named: list[Any] = []
    make = payload.BoundaryJournal

    def made(*fields: Any) -> payload.BoundaryJournal:
        journal = make(*fields)
        named.append((journal.links[-1].draw is not None, journal.iterators))
        return journal

    monkeypatch.setattr(payload, "BoundaryJournal", made)
    monkeypatch.setattr(script.engine.draws, "in_loop", lambda: True)
    script.run(TRAINING)
    assert [no_way_in for is_entered, no_way_in in named if is_entered] == [()] * (len(named) - 1), named
    assert len(named) >= 5
