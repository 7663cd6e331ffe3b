"""Gradients that a step adds to, and zeros in place of none, are part of what a rank is at its boundary."""

from __future__ import annotations

from pathlib import Path

import pytest
from faults.conftest import Undisturbed
from support.cells import few, only_in_long
from support.relay_run import assert_unharmed, relay

SCRIPT, RANKS = "kept_gradients.py", 2
MOST_REDONE = 3


@pytest.mark.core
@pytest.mark.slow
@pytest.mark.parametrize(
    ("how", "faults"),
    few(
        1,
        [
            ("never", ["kill:rank=1,step=2,phase=backward", "kill:rank=0,step=9,phase=after-step"]),
            ("views", ["kill:rank=0,step=4,phase=backward", "kill:rank=1,step=11,phase=after-step"]),
            ("late", ["kill:rank=1,step=6,phase=after-step", "kill:rank=0,step=13,phase=backward"]),
            ("in-place", ["kill:rank=0,step=5,phase=optimizer", "stop:rank=1,step=12,phase=forward"]),
            ("third", ["kill:rank=1,step=3,phase=backward", "kill:rank=0,step=11,phase=after-step"]),
            ("in-place", ["kill:rank=1,step=2,phase=backward", "kill:rank=0,step=9,phase=after-step"]),
            ("never", ["kill:rank=0,step=2,phase=forward", "stop:rank=1,step=7,phase=forward"]),
            ("never", ["kill:rank=1,step=5,phase=optimizer", "kill:rank=1,step=10,phase=backward"]),
        ],
    ),
)
def test_a_rank_that_is_lost_leaves_no_trace(
    how: str, faults: list[str], undisturbed: Undisturbed, tmp_path: Path
) -> None:
    run = relay(tmp_path, SCRIPT, how, ranks=RANKS, spares=len(faults), inject=faults)
    assert_unharmed(run, undisturbed(SCRIPT, how, ranks=RANKS), RANKS, faults, len(faults))


@only_in_long
@pytest.mark.parametrize("how", few(1, ["never", "tensor-parallel", "in-place", "sharded"]))
def test_one_that_is_moved_takes_them_along(how: str, undisturbed: Undisturbed, tmp_path: Path) -> None:
    faults = ["planned:rank=0,step=5,phase=forward"]
    run = relay(tmp_path, SCRIPT, how, ranks=RANKS, inject=faults, planned_at=[5], environment={"STEP_S": "0.08"})
    assert_unharmed(run, undisturbed(SCRIPT, how, ranks=RANKS), RANKS, faults, 1)


@only_in_long
@pytest.mark.parametrize(
    ("how", "phase"),
    few(
        1,
        [
            ("tensor-parallel", "backward"),
            ("sharded", "after-step"),
            ("tensor-parallel", "after-step"),
            ("sharded", "backward"),
            ("both", "after-step"),
        ],
    ),
)
def test_what_one_rank_alone_holds_comes_from_its_copies(
    how: str, phase: str, undisturbed: Undisturbed, tmp_path: Path
) -> None:
    fault = f"kill:rank=1,step=9,phase={phase}"
    run = relay(tmp_path, SCRIPT, how, ranks=RANKS, inject=[fault], options=["--cost-limit=0"])
    assert_unharmed(run, undisturbed(SCRIPT, how, ranks=RANKS), RANKS, [fault], 1)


@pytest.mark.slow
@pytest.mark.parametrize(
    "fault",
    few(
        1,
        [
            "kill:rank=1,step=2,phase=after-step",
            "kill:rank=0,step=2,phase=backward",
            "kill:rank=0,step=1,phase=after-step",
        ],
    ),
)
def test_they_come_from_its_copies_before_anybody_knows_that_steps_add_to_them(
    fault: str, undisturbed: Undisturbed, tmp_path: Path
) -> None:
    run = relay(tmp_path, SCRIPT, "both", ranks=RANKS, inject=[fault], options=["--cost-limit=0"])
    assert_unharmed(run, undisturbed(SCRIPT, "both", ranks=RANKS), RANKS, [fault], 1)


@pytest.mark.slow
@pytest.mark.parametrize("phase", few(1, ["after-step", "backward"]))
def test_those_that_ranks_hold_alike_come_from_another_rank_where_their_parameters_do_not(
    phase: str, undisturbed: Undisturbed, tmp_path: Path
) -> None:
    fault = f"kill:rank=1,step=9,phase={phase}"
    run = relay(tmp_path, SCRIPT, "alike", ranks=RANKS, inject=[fault], options=["--cost-limit=0"])
    assert_unharmed(run, undisturbed(SCRIPT, "alike", ranks=RANKS), RANKS, [fault], 1)
    assert {done["kind"] for done in run.committed()} == {"unplanned"}, run.told()
