"""Optimizers in turn in one iteration: a rank is lost between their updates, and nothing is updated twice."""

from __future__ import annotations

from pathlib import Path

import pytest
from faults.conftest import Undisturbed
from support.cells import few
from support.relay_run import assert_unharmed, relay

SCRIPT, RANKS = "turns.py", 2


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "fault"),
    few(
        3,
        [
            ("gan", "kill:rank=0,step=9,phase=gate"),
            ("gan", "kill:rank=1,step=15,phase=optimizer"),
            ("critic", "kill:rank=0,step=6,phase=forward"),
            ("pair", "kill:rank=1,step=5,phase=optimizer"),
            ("gan", "kill:rank=1,step=6,phase=backward"),
            ("gan", "kill:rank=0,step=12,phase=after-step"),
            ("critic", "kill:rank=1,step=11,phase=gate"),
            ("pair", "kill:rank=0,step=9,phase=backward"),
        ],
    ),
)
def test_a_rank_is_replaced(kind: str, fault: str, undisturbed: Undisturbed, tmp_path: Path) -> None:
    run = relay(tmp_path, SCRIPT, kind, ranks=RANKS, inject=[fault])
    assert_unharmed(run, undisturbed(SCRIPT, kind, ranks=RANKS), RANKS, [fault], 1)
