"""Tensors of a module that each forward makes anew of its parameters."""

from __future__ import annotations

from pathlib import Path

import pytest
from faults.conftest import Undisturbed
from support.relay_run import assert_unharmed, relay

SCRIPT, RANKS = "normalized_weights.py", 2


@pytest.mark.slow
def test_a_rank_that_evaluates_alone_behind_a_migration_is_no_rank_that_differs(
    undisturbed: Undisturbed, tmp_path: Path
) -> None:
    """It leaves the weights of its update behind, and the other rank those of its forward."""
    faults = ["kill:rank=1,step=9,phase=forward"]
    run = relay(tmp_path, SCRIPT, ranks=RANKS, spares=len(faults), inject=faults)
    assert_unharmed(run, undisturbed(SCRIPT, ranks=RANKS), RANKS, faults, len(faults))
