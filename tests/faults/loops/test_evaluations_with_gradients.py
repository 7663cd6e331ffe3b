"""An evaluation goes through the wrapper with gradients switched on, in the step that a migration was in."""

from __future__ import annotations

from pathlib import Path

import pytest
from faults.conftest import Undisturbed
from support.relay_run import assert_unharmed, relay

SCRIPT, RANKS = "evaluated_forces.py", 2
FAULTS = ["kill:rank=1,step=8,phase=backward", "kill:rank=0,step=11,phase=after-step"]


@pytest.mark.slow
def test_a_rank_is_replaced(undisturbed: Undisturbed, tmp_path: Path) -> None:
    run = relay(tmp_path, SCRIPT, ranks=RANKS, spares=2, inject=FAULTS)
    assert_unharmed(run, undisturbed(SCRIPT, ranks=RANKS), RANKS, FAULTS, 2)
