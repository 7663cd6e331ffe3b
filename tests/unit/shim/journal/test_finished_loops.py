"""What is kept of training loops that are over."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from torchrelay.shim.journal.finished_loops import FinishedLoops


def loop(site: str, heads: int) -> Any:
    return SimpleNamespace(site=site, entry=1, heads=heads, first_mark=0, head_mark=0, first_passed=0)


def test_a_loop_that_is_over_is_told_with_how_often_each_head_had_been_reached() -> None:
    epochs, batches, following = loop("epochs", 3), loop("batches", 5), loop("following", 1)
    phases = FinishedLoops()
    phases.boundary([epochs, batches], [b"journal"], ())
    epochs.heads = 4  # an epoch without a step
    phases.head(following, [following])
    assert [(passed.site, passed.heads) for passed in phases.passed] == [("epochs", (4, 5))]


def test_a_loop_within_one_that_goes_on_is_told_alone() -> None:
    rounds, batches, others = loop("rounds", 2), loop("batches", 6), loop("others", 1)
    phases = FinishedLoops()
    phases.boundary([rounds, batches], [b"journal"], ())
    phases.head(others, [rounds, others])
    assert [(passed.site, passed.heads) for passed in phases.passed] == [("batches", (6,))]
