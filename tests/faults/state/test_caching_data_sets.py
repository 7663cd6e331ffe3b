"""What a data set keeps from one draw to the next, drawn from in the training process, goes with a rank."""

from __future__ import annotations

from pathlib import Path

import pytest
from faults.conftest import Undisturbed
from support.cells import few
from support.relay_run import assert_unharmed, relay

SCRIPT, RANKS = "caching_data.py", 2
FAULTS = ["kill:rank=1,step=12,phase=backward", "kill:rank=0,step=5,phase=data", "kill:rank=0,step=17,phase=after-step"]


@pytest.mark.slow
@pytest.mark.parametrize("fault", few(1, FAULTS))
def test_the_numbers_are_those_without_a_loss(fault: str, undisturbed: Undisturbed, tmp_path: Path) -> None:
    run = relay(tmp_path, SCRIPT, ranks=RANKS, inject=[fault])
    assert_unharmed(run, undisturbed(SCRIPT, ranks=RANKS), RANKS, [fault], 1)
