"""More than one failure in one run."""

from __future__ import annotations

from pathlib import Path

import pytest
from faults.conftest import Undisturbed
from support.cells import only_in_long
from support.relay_run import assert_unharmed, relay

SCRIPT, RANKS = "ddp.py", 3


def test_spares_are_used_up_by_losses_of_every_kind(undisturbed: Undisturbed, tmp_path: Path) -> None:
    faults = [
        "planned:rank=2,step=4,phase=forward",
        "kill:rank=0,step=45,phase=backward",
        "stop:rank=1,step=60,phase=gate",
    ]
    run = relay(tmp_path, SCRIPT, ranks=RANKS, spares=3, inject=faults, planned_at=[4])
    assert_unharmed(run, undisturbed(SCRIPT, ranks=RANKS), RANKS, faults, 3)
    assert [m["rank"] for m in run.committed()] == [2, 0, 1]
    assert len({m["spare"] for m in run.committed()}) == 3
    assert [m["generation"] for m in run.committed()] == sorted({m["generation"] for m in run.committed()})


@only_in_long
def test_a_rank_is_lost_twice_and_its_second_home_too(undisturbed: Undisturbed, tmp_path: Path) -> None:
    faults = ["kill:rank=1,step=12,phase=after-step", "kill:rank=1,step=33,phase=forward"]
    run = relay(tmp_path, SCRIPT, ranks=RANKS, spares=2, inject=faults)
    assert_unharmed(run, undisturbed(SCRIPT, ranks=RANKS), RANKS, faults, 2)
    assert [m["rank"] for m in run.committed()] == [1, 1]


@only_in_long
def test_another_rank_is_lost_in_the_step_that_is_redone(undisturbed: Undisturbed, tmp_path: Path) -> None:
    faults = ["kill:rank=0,step=2,phase=forward", "kill:rank=2,step=2,phase=gate"]
    run = relay(tmp_path, SCRIPT, ranks=RANKS, spares=2, inject=faults)
    assert_unharmed(run, undisturbed(SCRIPT, ranks=RANKS), RANKS, faults, 2)


@pytest.mark.core
def test_two_ranks_are_lost_in_one_step(undisturbed: Undisturbed, tmp_path: Path) -> None:
    faults = ["kill:rank=0,step=25,phase=forward", "kill:rank=2,step=25,phase=forward"]
    run = relay(tmp_path, SCRIPT, ranks=RANKS, spares=2, inject=faults)
    assert run.status == 0, run.told()
    moved = {rank for migration in run.committed() for rank in migration["ranks"]}
    assert moved == {0, 2}, run.told()
    assert_unharmed(run, undisturbed(SCRIPT, ranks=RANKS), RANKS, faults, len(run.committed()))


@only_in_long
def test_what_training_has_made_goes_on_to_a_third_home(undisturbed: Undisturbed, tmp_path: Path) -> None:
    faults = ["kill:rank=1,step=6,phase=optimizer", "kill:rank=1,step=14,phase=backward"]
    run = relay(tmp_path, "born.py", ranks=2, spares=2, inject=faults)
    assert_unharmed(run, undisturbed("born.py", ranks=2), 2, faults, 2)
    assert [m["rank"] for m in run.committed()] == [1, 1]


def test_a_rank_that_waits_behind_its_update_for_a_message_in_vain_is_replaced_with_one_that_is_lost_meanwhile(
    undisturbed: Undisturbed, tmp_path: Path
) -> None:
    faults = ["lonely:rank=2,step=26,phase=data", "kill:rank=1,step=26,phase=forward"]
    run = relay(tmp_path, SCRIPT, ranks=RANKS, spares=2, inject=faults)
    assert_unharmed(run, undisturbed(SCRIPT, ranks=RANKS), RANKS, faults, 1)
    assert [m["ranks"] for m in run.committed()] == [[1, 2]], run.told()
