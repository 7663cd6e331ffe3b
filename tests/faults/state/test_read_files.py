"""Files that training reads by itself are read on from where the lost rank stood, and read again where a step is done again."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.relay_run import assert_unharmed, plain, relay

SCRIPT, RANKS = "reading_files.py", 2
FAULTS = [
    "kill:rank=1,step=8,phase=backward",
    "kill:rank=0,step=10,phase=after-step",
    "kill:rank=1,step=13,phase=after-step",
]


@pytest.mark.slow
def test_a_rank_is_replaced(tmp_path: Path) -> None:
    reference = plain(tmp_path / "plain", SCRIPT, ranks=RANKS)
    run = relay(tmp_path / "relay", SCRIPT, ranks=RANKS, spares=3, inject=FAULTS)
    assert_unharmed(run, reference, RANKS, FAULTS, 3)
