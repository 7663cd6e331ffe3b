"""Parameters that no model has, such as averages of the weights in a list, are carried as other tensors are."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest
from faults.conftest import Undisturbed
from support.cells import few
from support.relay_run import assert_unharmed, relay

SCRIPT, RANKS = "lists_of_parameters.py", 2
FAULTS = ["kill:rank=1,step=7,phase=backward", "kill:rank=0,step=12,phase=after-step"]
CELLS = [*itertools.product(("written", "large", "early", "anew"), FAULTS)]


@pytest.mark.slow
@pytest.mark.parametrize(("how", "fault"), few(1, CELLS))
def test_the_numbers_are_those_without_a_loss(how: str, fault: str, undisturbed: Undisturbed, tmp_path: Path) -> None:
    run = relay(tmp_path, SCRIPT, how, ranks=RANKS, inject=[fault])
    assert_unharmed(run, undisturbed(SCRIPT, how, ranks=RANKS), RANKS, [fault], 1)
