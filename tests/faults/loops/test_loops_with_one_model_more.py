"""Loops one after the other, the later ones with a model more: what was known of the others in the earlier loop still holds."""

from __future__ import annotations

from pathlib import Path

import pytest
from faults.conftest import Undisturbed
from support.cells import few, only_in_long
from support.relay_run import assert_unharmed, relay
from support.training import differences

SCRIPT, RANKS = "one_model_more.py", 2
ANY_COST = ["--cost-limit=0"]
"""On a busy machine the copies of these small steps may take too much of one."""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("how", "faults"),
    few(
        2,
        [
            ("within", ["kill:rank=0,step=6,phase=after-step"]),
            ("same", ["kill:rank=1,step=12,phase=after-step", "kill:rank=0,step=24,phase=after-step"]),
            ("average", ["kill:rank=0,step=13,phase=backward"]),
            ("average", ["kill:rank=1,step=12,phase=after-step"]),
            ("met", ["kill:rank=0,step=12,phase=after-step"]),
            ("within", ["kill:rank=1,step=6,phase=after-step"]),
            ("habits", ["kill:rank=1,step=13,phase=backward"]),
        ],
    ),
)
def test_a_rank_that_is_lost_around_a_loops_end_is_replaced_and_nobody_goes_back(
    how: str, faults: list[str], undisturbed: Undisturbed, tmp_path: Path
) -> None:
    run = relay(tmp_path, SCRIPT, how, ranks=RANKS, spares=len(faults), inject=faults, options=ANY_COST)
    assert_unharmed(run, undisturbed(SCRIPT, how, ranks=RANKS), RANKS, faults, len(faults))
    assert {done["kind"] for done in run.committed()} == {"unplanned"}, run.told()


@pytest.mark.core
@pytest.mark.slow
def test_where_what_a_rank_alone_held_is_called_otherwise_by_now_all_go_back(
    undisturbed: Undisturbed, tmp_path: Path
) -> None:
    """The lost rank's copy has the names of before, and the donor another content under those of now."""
    fault = "kill:rank=1,step=12,phase=after-step"
    run = relay(tmp_path, SCRIPT, "own", ranks=RANKS, inject=[fault], options=ANY_COST)
    assert run.faults() == [fault], run.told()
    assert {done["kind"] for done in run.committed()} == {"rollback"}, run.told()
    assert differences(undisturbed(SCRIPT, "own", ranks=RANKS), run.out, RANKS) == [], run.told()


@only_in_long
def test_gradients_that_nobody_gives_are_refused_where_parameters_are_called_otherwise_by_now(tmp_path: Path) -> None:
    fault = "kill:rank=1,step=12,phase=after-step"
    run = relay(tmp_path, SCRIPT, "habits", ranks=RANKS, inject=[fault], options=ANY_COST)
    assert run.faults() == [fault], run.told()
    assert run.committed() == [], run.told()
    assert "parameters are called otherwise by now" in run.stderr, run.told()


@only_in_long
def test_a_model_that_another_rank_alone_has_made_before_the_others_is_not_taken_for_one_of_them(
    tmp_path: Path,
) -> None:
    fault = "kill:rank=1,step=12,phase=after-step"
    run = relay(tmp_path, SCRIPT, "one", ranks=RANKS, inject=[fault], options=ANY_COST)
    assert run.faults() == [fault], run.told()
    assert run.status != 0, run.told()
    assert "is another tensor on the donor" in run.stderr, run.told()


@pytest.mark.slow
@pytest.mark.parametrize("how", few(1, ["same", "average"]))
def test_behind_the_first_update_of_a_further_loop_no_other_rank_s_tensors_are_taken(
    how: str, undisturbed: Undisturbed, tmp_path: Path
) -> None:
    """Each rank may train in a way of its own there, and nothing was compared since."""
    fault = "kill:rank=1,step=13,phase=after-step"
    run = relay(tmp_path, SCRIPT, how, ranks=RANKS, inject=[fault], options=ANY_COST)
    assert run.faults() == [fault], run.told()
    assert {done["kind"] for done in run.committed()} <= {"rollback"}, run.told()
    if run.status == 0:
        assert differences(undisturbed(SCRIPT, how, ranks=RANKS), run.out, RANKS) == [], run.told()


@pytest.mark.slow
def test_a_model_made_between_two_loops_is_not_promised_before_its_first_update(tmp_path: Path) -> None:
    fault = "kill:rank=1,step=25,phase=after-step"
    run = relay(tmp_path, SCRIPT, "average", ranks=RANKS, inject=[fault], options=ANY_COST)
    levels = [event["level"] for event in run.named("protection")]
    assert levels.count("protected") > 1, run.told()
    assert "partly" in levels[levels.index("protected") :], run.told()
