"""Small files that training writes and reads again hold what they held: where a step is done again, and for a new process."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.relay_run import assert_unharmed, plain, relay

SCRIPT, RANKS = "files_read_again.py", 2
FAULTS = [
    "kill:rank=1,step=7,phase=forward",
    "kill:rank=0,step=12,phase=optimizer",
    "kill:rank=1,step=15,phase=backward",
    "kill:rank=0,step=20,phase=after-step",
]


@pytest.mark.slow
def test_a_rank_is_replaced(tmp_path: Path) -> None:
    reference = plain(tmp_path / "plain", SCRIPT, ranks=RANKS)
    run = relay(tmp_path / "relay", SCRIPT, ranks=RANKS, spares=4, inject=FAULTS)
    assert_unharmed(run, reference, RANKS, FAULTS, 4)


@pytest.mark.parametrize("kind", ["kept", "large"])
def test_no_rank_is_replaced_where_they_are_not_carried(kind: str, tmp_path: Path) -> None:
    run = relay(tmp_path, SCRIPT, kind, ranks=RANKS, inject=FAULTS[:1])
    assert run.status != 0, run.told()
    assert run.committed() == [], run.told()
    assert "training keeps it open" in run.told() or "too large to be carried" in run.told()


def test_a_rank_moves(tmp_path: Path) -> None:
    reference = plain(tmp_path / "plain", SCRIPT, ranks=RANKS)
    planned, slow = ["planned:rank=1,step=8"], {"STEP_S": "0.08"}
    run = relay(tmp_path / "relay", SCRIPT, ranks=RANKS, inject=planned, planned_at=[8], environment=slow)
    assert_unharmed(run, reference, RANKS, [f"{planned[0]},phase=forward"], 1)
