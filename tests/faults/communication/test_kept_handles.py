"""Handles of collectives that outlive their step: those from behind an update come over, and for others no rank is replaced."""

from __future__ import annotations

from pathlib import Path

import pytest
from faults.conftest import Undisturbed
from support.relay_run import assert_unharmed, relay

SCRIPT, RANKS = "kept_handles.py", 2
FAULTS = ["kill:rank=1,step=8,phase=backward", "kill:rank=0,step=14,phase=after-step"]


@pytest.mark.slow
def test_a_rank_that_keeps_one_from_behind_its_update_is_replaced(undisturbed: Undisturbed, tmp_path: Path) -> None:
    run = relay(tmp_path, SCRIPT, "late", ranks=RANKS, spares=2, inject=FAULTS)
    assert_unharmed(run, undisturbed(SCRIPT, "late", ranks=RANKS), RANKS, FAULTS, 2)


@pytest.mark.slow
def test_no_rank_is_replaced_where_one_from_in_front_of_an_update_is_kept(tmp_path: Path) -> None:
    run = relay(tmp_path, SCRIPT, "early", ranks=RANKS, spares=1, inject=FAULTS[:1])
    assert run.status != 0, run.told()
    assert run.committed() == [], run.told()
    reports = [event for event in run.named("rank_report") if event["rank"] == 0]
    assert any("waited for in a later one" in text for text in reports[-1]["unprotected"]), reports[-1]
