"""Batches that a thread fetches ahead come again: to a rank that goes back, and to a process that takes over."""

from __future__ import annotations

from pathlib import Path

import pytest
from faults.conftest import Undisturbed
from support.cells import few
from support.relay_run import assert_unharmed, relay

SCRIPT, RANKS = "fetched_ahead.py", 2


@pytest.mark.slow
@pytest.mark.parametrize("how", few(4, ["object", "late", "loader", "file", "generator", "float"]))
def test_a_process_that_takes_over_goes_on_with_the_same_batches(
    how: str, undisturbed: Undisturbed, tmp_path: Path
) -> None:
    faults = ["kill:rank=1,step=7,phase=backward", "kill:rank=0,step=16,phase=after-step"]
    run = relay(tmp_path, SCRIPT, how, ranks=RANKS, spares=2, inject=faults)
    assert_unharmed(run, undisturbed(SCRIPT, how, ranks=RANKS), RANKS, faults, 2)


@pytest.mark.slow
@pytest.mark.parametrize("how", few(1, ["asked", "polled"]))
def test_no_rank_is_replaced_where_training_and_the_thread_depend_on_each_other(how: str, tmp_path: Path) -> None:
    run = relay(tmp_path, SCRIPT, how, ranks=RANKS, spares=1, inject=["kill:rank=1,step=8,phase=backward"])
    assert run.status != 0, run.told()
    assert run.committed() == [], run.told()
    reports = [event for event in run.named("rank_report") if event["rank"] == 1]
    text = "training reads what another thread puts into a queue"
    assert any(text in gap for gap in reports[-1]["unprotected"]), reports[-1]
