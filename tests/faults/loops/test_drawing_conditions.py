"""Loops whose condition draws the next batch: a rank that goes back does not draw another one."""

from __future__ import annotations

from pathlib import Path

import pytest
from faults.conftest import Undisturbed
from support.relay_run import assert_unharmed, relay

SCRIPT, RANKS = "drawing_conditions.py", 2


@pytest.mark.parametrize("how", ["walrus", "method"])
@pytest.mark.parametrize("fault", ["kill:rank=1,step=9,phase=backward", "kill:rank=0,step=6,phase=after-step"])
def test_the_numbers_are_those_without_a_loss(fault: str, how: str, undisturbed: Undisturbed, tmp_path: Path) -> None:
    run = relay(tmp_path, SCRIPT, how, ranks=RANKS, inject=[fault])
    assert_unharmed(run, undisturbed(SCRIPT, how, ranks=RANKS), RANKS, [fault], 1)
