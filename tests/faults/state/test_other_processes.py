"""What other processes hold is not moved: no rank is replaced where training reads it, and the report says so."""

from __future__ import annotations

from pathlib import Path

import pytest
from faults.conftest import Undisturbed
from support.cells import few
from support.relay_run import assert_unharmed, relay

SCRIPT, RANKS = "emulated.py", 2


@pytest.mark.slow
@pytest.mark.parametrize("how", few(1, ["pipe", "queue", "manager"]))
def test_no_rank_is_replaced(how: str, tmp_path: Path) -> None:
    run = relay(tmp_path, SCRIPT, how, ranks=RANKS, spares=1, inject=["kill:rank=1,step=8,phase=backward"])
    assert run.status != 0, run.told()
    assert run.committed() == [], run.told()
    reports = [event for event in run.named("rank_report") if event["rank"] == 1]
    assert any("training reads what another process sends" in text for text in reports[-1]["unprotected"]), reports[-1]


@pytest.mark.slow
@pytest.mark.parametrize("how", few(1, ["pool", "fifo"]))
def test_what_holds_nothing_between_two_steps_is_no_obstacle(
    how: str, undisturbed: Undisturbed, tmp_path: Path
) -> None:
    faults = ["kill:rank=1,step=8,phase=backward"]
    run = relay(tmp_path, SCRIPT, how, ranks=RANKS, spares=1, inject=faults)
    assert_unharmed(run, undisturbed(SCRIPT, how, ranks=RANKS), RANKS, faults, 1)
