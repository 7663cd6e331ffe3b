"""What only a set, a key, a hook, a logger, a view or a cache of calls holds goes back, and comes over, as all else."""

from __future__ import annotations

from pathlib import Path

import pytest
from faults.conftest import Undisturbed
from support.relay_run import assert_unharmed, relay

SCRIPT, RANKS = "held_objects.py", 2
FAULTS = ["kill:rank=1,step=8,phase=backward", "kill:rank=0,step=14,phase=after-step"]


@pytest.mark.slow
def test_a_rank_is_replaced(undisturbed: Undisturbed, tmp_path: Path) -> None:
    run = relay(tmp_path, SCRIPT, ranks=RANKS, spares=2, inject=FAULTS)
    assert_unharmed(run, undisturbed(SCRIPT, ranks=RANKS), RANKS, FAULTS, 2)
