"""The body of a loop around asks an iterator before the loop inside trains: a new process goes through it as the lost rank did."""

from __future__ import annotations

from pathlib import Path

import pytest
from faults.conftest import Undisturbed
from support.relay_run import assert_unharmed, relay

SCRIPT, RANKS = "asked_rollouts.py", 2
FAULTS = ("kill:rank=0,step=6,phase=after-step", "kill:rank=1,step=14,phase=backward")


@pytest.mark.parametrize("kind", ["generator", "kept"])
def test_a_rank_is_replaced_behind_a_rollout_that_asked_for_its_batch(
    kind: str, undisturbed: Undisturbed, tmp_path: Path
) -> None:
    run = relay(tmp_path, SCRIPT, kind, ranks=RANKS, spares=2, inject=FAULTS)
    assert_unharmed(run, undisturbed(SCRIPT, kind, ranks=RANKS), RANKS, list(FAULTS), 2)
