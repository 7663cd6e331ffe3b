"""What steps write into the data set that they draw from in their own process goes back and goes on with a rank."""

from __future__ import annotations

from pathlib import Path

import pytest
from faults.conftest import Undisturbed
from support.cells import few
from support.relay_run import assert_unharmed, relay

SCRIPT, RANKS = "scores_in_data.py", 2
FAULTS = ["kill:rank=1,step=8,phase=backward", "kill:rank=0,step=12,phase=after-step", "kill:rank=1,step=14,phase=data"]


@pytest.mark.slow
@pytest.mark.parametrize("fault", few(1, FAULTS))
def test_the_numbers_are_those_without_a_loss(fault: str, undisturbed: Undisturbed, tmp_path: Path) -> None:
    run = relay(tmp_path, SCRIPT, ranks=RANKS, inject=[fault])
    assert_unharmed(run, undisturbed(SCRIPT, ranks=RANKS), RANKS, [fault], 1)
