"""What a step binds anew, and objects that are reached in more ways than one."""

from __future__ import annotations

from pathlib import Path

import pytest
from faults.conftest import Undisturbed
from support.cells import few, only_in_long
from support.relay_run import assert_unharmed, relay

RANKS = 2


@pytest.mark.core
@pytest.mark.slow
@pytest.mark.parametrize("fault", few(1, ["kill:rank=0,step=8,phase=backward", "kill:rank=1,step=12,phase=gate"]))
def test_buffers_that_the_step_binds_anew_go_back_with_it(fault: str, undisturbed: Undisturbed, tmp_path: Path) -> None:
    run = relay(tmp_path, "bound_anew.py", ranks=RANKS, inject=[fault])
    assert_unharmed(run, undisturbed("bound_anew.py", ranks=RANKS), RANKS, [fault], 1)


@only_in_long
def test_a_rank_is_lost_twice_in_one_epoch_behind_a_part_that_was_bound_anew(
    undisturbed: Undisturbed, tmp_path: Path
) -> None:
    """The process that took it over hands on what the first one had recorded where the epoch began."""
    faults = ["kill:rank=0,step=5,phase=backward", "kill:rank=0,step=8,phase=backward"]
    run = relay(tmp_path, "loss_with_parts.py", ranks=RANKS, spares=2, inject=faults)
    assert_unharmed(run, undisturbed("loss_with_parts.py", ranks=RANKS), RANKS, faults, 2)
