"""A counter in a store would count a step twice that is done again: no rank is replaced, and the report says so."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.relay_run import relay

SCRIPT, RANKS = "counting_store.py", 2


@pytest.mark.slow
def test_no_rank_is_replaced(tmp_path: Path) -> None:
    run = relay(tmp_path, SCRIPT, ranks=RANKS, spares=1, inject=["kill:rank=1,step=8,phase=backward"])
    assert run.status != 0, run.told()
    assert run.committed() == [], run.told()
    reports = [event for event in run.named("rank_report") if event["rank"] == 0]
    assert any("training changes a store (add)" in text for text in reports[-1]["unprotected"]), reports[-1]
