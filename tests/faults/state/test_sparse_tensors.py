"""Sparse tensors as gradients, attributes, batches, and a variable that training changes."""

from __future__ import annotations

from pathlib import Path

import pytest
from faults.conftest import Undisturbed
from support.relay_run import assert_unharmed, relay

SCRIPT, RANKS = "sparse_tensors.py", 2


@pytest.mark.parametrize("fault", ["kill:rank=1,step=9,phase=after-step", "kill:rank=0,step=6,phase=backward"])
def test_the_numbers_are_those_without_a_loss(fault: str, undisturbed: Undisturbed, tmp_path: Path) -> None:
    run = relay(tmp_path, SCRIPT, ranks=RANKS, inject=[fault])
    assert_unharmed(run, undisturbed(SCRIPT, ranks=RANKS), RANKS, [fault], 1)
