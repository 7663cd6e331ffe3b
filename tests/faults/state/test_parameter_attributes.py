"""What training keeps in attributes of parameters is put back with a step, and carried to a process that takes over a rank."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest
from faults.conftest import Undisturbed
from support.cells import few, only_in_long
from support.relay_run import assert_unharmed, relay
from support.training import differences

SCRIPT, RANKS = "parameter_attributes.py", 2
FAULTS = ["kill:rank=1,step=7,phase=backward", "kill:rank=0,step=12,phase=gate"]
CELLS = [*itertools.product(("momentum", "gradients"), FAULTS)]


@pytest.mark.slow
@pytest.mark.parametrize(("kept", "fault"), few(1, CELLS))
def test_the_numbers_are_those_without_a_loss(kept: str, fault: str, undisturbed: Undisturbed, tmp_path: Path) -> None:
    run = relay(tmp_path, SCRIPT, kept, ranks=RANKS, inject=[fault])
    assert_unharmed(run, undisturbed(SCRIPT, kept, ranks=RANKS), RANKS, [fault], 1)


@only_in_long
def test_where_each_rank_has_its_own_all_go_back_to_copies(undisturbed: Undisturbed, tmp_path: Path) -> None:
    run = relay(tmp_path, SCRIPT, "samples", ranks=RANKS, inject=FAULTS[:1])
    assert run.status == 0, run.told()
    assert run.faults() == FAULTS[:1], run.told()
    assert [migration["kind"] for migration in run.committed()] == ["rollback"], run.told()
    assert differences(undisturbed(SCRIPT, "samples", ranks=RANKS), run.out, RANKS) == []


@only_in_long
def test_a_process_that_has_taken_over_a_rank_carries_them_on(undisturbed: Undisturbed, tmp_path: Path) -> None:
    faults = [FAULTS[0], "kill:rank=1,step=14,phase=backward", "kill:rank=0,step=17,phase=gate"]
    run = relay(tmp_path, SCRIPT, "momentum", ranks=RANKS, spares=3, inject=faults)
    assert_unharmed(run, undisturbed(SCRIPT, "momentum", ranks=RANKS), RANKS, faults, 3)
