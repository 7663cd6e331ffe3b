"""What torch.compile has compiled for several sizes depends on their order: no rank is replaced then, and the report says so."""

from __future__ import annotations

from pathlib import Path

import pytest
from faults.conftest import Undisturbed
from support.relay_run import assert_unharmed, relay

SCRIPT, RANKS = "compiled.py", 2
FAULTS = ["kill:rank=1,step=7,phase=backward"]


@pytest.mark.slow
def test_no_rank_is_replaced_where_sizes_vary(tmp_path: Path) -> None:
    run = relay(tmp_path, SCRIPT, "several", ranks=RANKS, spares=1, inject=FAULTS)
    assert run.status != 0, run.told()
    assert run.committed() == [], run.told()
    reports = [event for event in run.named("rank_report") if event["rank"] == 1]
    assert any("was compiled for one size and then for all" in text for text in reports[-1]["unprotected"]), reports[-1]


@pytest.mark.slow
def test_one_is_where_they_do_not(undisturbed: Undisturbed, tmp_path: Path) -> None:
    run = relay(tmp_path, SCRIPT, "one", ranks=RANKS, spares=1, inject=FAULTS)
    assert_unharmed(run, undisturbed(SCRIPT, "one", ranks=RANKS), RANKS, FAULTS, 1)
