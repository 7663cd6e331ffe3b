"""Tensors of a class of the script's own, which a rank reads after its update."""

from __future__ import annotations

from pathlib import Path

import pytest
from faults.conftest import Undisturbed
from support.relay_run import assert_unharmed, relay

SCRIPT, RANKS = "own_tensors.py", 2


@pytest.mark.core
def test_a_loss_of_a_class_of_its_own_survives_its_rank(undisturbed: Undisturbed, tmp_path: Path) -> None:
    faults = ["kill:rank=1,step=5,phase=after-step", "kill:rank=0,step=11,phase=backward"]
    run = relay(tmp_path, SCRIPT, ranks=RANKS, spares=len(faults), inject=faults)
    assert_unharmed(run, undisturbed(SCRIPT, ranks=RANKS), RANKS, faults, len(faults))
