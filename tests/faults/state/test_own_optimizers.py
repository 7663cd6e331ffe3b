"""What an optimizer computes from gradients and keeps in places of its own is right in a process that makes the update again.

A rank that is lost behind its gate is followed by going through that update without the gradients of others.
"""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest
from faults.conftest import Undisturbed
from support.cells import few, only_in_long
from support.relay_run import assert_unharmed, relay

SCRIPT, RANKS = "own_optimizers.py", 2
FAULTS = ["kill:rank=1,step=9,phase=data", "kill:rank=0,step=9,phase=after-step", "kill:rank=1,step=12,phase=optimizer"]
CELLS = [*itertools.product(("number", "tensor", "anew", "history", "told"), FAULTS)]


@pytest.mark.slow
@pytest.mark.parametrize(("kept", "fault"), few(1, CELLS))
def test_the_numbers_are_those_without_a_loss(kept: str, fault: str, undisturbed: Undisturbed, tmp_path: Path) -> None:
    run = relay(tmp_path, SCRIPT, kept, ranks=RANKS, inject=[fault])
    assert_unharmed(run, undisturbed(SCRIPT, kept, ranks=RANKS), RANKS, [fault], 1)


@only_in_long
def test_a_process_that_has_taken_over_a_rank_tells_its_own_updates(undisturbed: Undisturbed, tmp_path: Path) -> None:
    faults = [FAULTS[0], "kill:rank=1,step=11,phase=after-step", "kill:rank=0,step=13,phase=data"]
    run = relay(tmp_path, SCRIPT, "number", ranks=RANKS, spares=3, inject=faults)
    assert_unharmed(run, undisturbed(SCRIPT, "number", ranks=RANKS), RANKS, faults, 3)


@pytest.mark.slow
def test_where_each_rank_computes_another_number_nobody_goes_on_with_a_wrong_one(tmp_path: Path) -> None:
    run = relay(tmp_path, SCRIPT, "own", ranks=RANKS, inject=FAULTS[:1])
    assert run.status != 0, run.told()
    assert run.faults() == FAULTS[:1], run.told()
    assert run.committed() == [], run.told()
    assert "no other rank has the same" in run.told()
