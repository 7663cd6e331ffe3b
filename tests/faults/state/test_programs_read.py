"""A program that a step reads from holds what nobody sees: no rank is replaced, and the job says so before."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.relay_run import relay

SCRIPT, RANKS = "programs_read.py", 2
FAULT = "kill:rank=1,step=7,phase=backward"


@pytest.mark.parametrize("kind", ["engine", "stream"])
def test_no_rank_is_replaced(kind: str, tmp_path: Path) -> None:
    run = relay(tmp_path, SCRIPT, kind, ranks=RANKS, inject=[FAULT])
    assert run.faults() == [FAULT], run.told()
    assert run.committed() == [], run.told()
    assert "training may read what it sends: no rank can be replaced" in str(run.named("coverage"))
