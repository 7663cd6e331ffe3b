"""An inner loop over the phases of a step, and an average behind it: the head behind that has the number of the one before it."""

from __future__ import annotations

from pathlib import Path

import pytest
from faults.conftest import Undisturbed
from support.cells import few
from support.relay_run import assert_unharmed, relay

SCRIPT, RANKS = "phases_and_average.py", 2
FAULTS = ["kill:rank=1,step=6,phase=backward", "kill:rank=0,step=9,phase=after-step", "kill:rank=1,step=13,phase=data"]


@pytest.mark.slow
@pytest.mark.parametrize("fault", few(1, FAULTS))
def test_the_numbers_are_those_without_a_loss(fault: str, undisturbed: Undisturbed, tmp_path: Path) -> None:
    run = relay(tmp_path, SCRIPT, ranks=RANKS, inject=[fault])
    assert_unharmed(run, undisturbed(SCRIPT, ranks=RANKS), RANKS, [fault], 1)
