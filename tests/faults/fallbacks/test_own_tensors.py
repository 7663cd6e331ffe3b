"""What one rank alone holds is copied in each step: its loss takes nobody back."""

from __future__ import annotations

from pathlib import Path

import pytest
from faults.conftest import Undisturbed
from support.cells import few, only_in_long
from support.relay_run import assert_unharmed, relay

RANKS = 2
ANY_COST = ["--cost-limit=0"]
"""On a busy machine the copies of these small steps may take too much of one."""


@pytest.mark.core
@pytest.mark.slow
@pytest.mark.parametrize(
    ("how", "fault"),
    few(
        1,
        [
            ("dict", "kill:rank=1,step=34,phase=after-step"),
            ("behind", "kill:rank=1,step=34,phase=after-step"),
            ("data", "kill:rank=0,step=33,phase=after-step"),
            ("dict", "kill:rank=0,step=33,phase=backward"),
            ("behind", "kill:rank=0,step=34,phase=backward"),
            ("behind", "kill:rank=1,step=33,phase=gate"),
            ("behind", "stop:rank=1,step=30,phase=forward"),
            ("data", "kill:rank=1,step=34,phase=data"),
        ],
    ),
)
def test_a_rank_with_an_average_of_its_own_is_replaced_at_the_cost_of_one_step(
    how: str, fault: str, undisturbed: Undisturbed, tmp_path: Path
) -> None:
    run = relay(tmp_path, "own_average.py", how, ranks=RANKS, inject=[fault], options=ANY_COST)
    assert_unharmed(run, undisturbed("own_average.py", how, ranks=RANKS), RANKS, [fault], 1)
    (done,) = run.committed()
    assert (done["kind"], done["steps_redone"] <= 1) == ("unplanned", True), run.told()
    assert any("copied in each step" in e["text"] for e in run.named("decision")), run.told()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("every", "step", "phase"),
    few(
        2,
        [
            ("1", 34, "after-step"),
            ("7", 34, "after-step"),
            ("7", 36, "after-step"),
            ("1", 34, "gate"),
            ("7", 36, "backward"),
            ("7", 37, "after-step"),
            ("7", 37, "data"),
        ],
    ),
)
def test_a_rank_whose_steps_make_a_large_tensor_anew_is_replaced_at_the_cost_of_one_step(
    every: str, step: int, phase: str, undisturbed: Undisturbed, tmp_path: Path
) -> None:
    fault = f"kill:rank=0,step={step},phase={phase}"
    run = relay(tmp_path, "own_rollout.py", every, ranks=RANKS, inject=[fault], options=ANY_COST)
    assert_unharmed(run, undisturbed("own_rollout.py", every, ranks=RANKS), RANKS, [fault], 1)
    (done,) = run.committed()
    assert (done["kind"], done["steps_redone"] <= 1) == ("unplanned", True), run.told()


@only_in_long
def test_the_rank_is_lost_again_before_its_next_head(undisturbed: Undisturbed, tmp_path: Path) -> None:
    """The copy that the first new process has come from is there for the second one."""
    faults = ["kill:rank=1,step=33,phase=gate", "kill:rank=1,step=33,phase=backward"]
    run = relay(tmp_path, "own_average.py", "behind", ranks=RANKS, spares=2, inject=faults, options=ANY_COST)
    assert_unharmed(run, undisturbed("own_average.py", "behind", ranks=RANKS), RANKS, faults, 2)
    assert {done["kind"] for done in run.committed()} == {"unplanned"}, run.told()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("shards", "faults"),
    few(
        1,
        [
            ("alone", ["kill:rank=1,step=9,phase=after-step"]),
            ("alone", ["kill:rank=0,step=1,phase=backward"]),
            ("alone", ["kill:rank=1,step=8,phase=backward", "kill:rank=0,step=12,phase=after-step"]),
            ("alone", ["kill:rank=0,step=1,phase=after-step"]),
            ("alone", ["kill:rank=1,step=2,phase=forward"]),
            ("alone", ["kill:rank=0,step=9,phase=gate"]),
            ("alone", ["stop:rank=1,step=8,phase=forward"]),
            ("alone", ["kill:rank=1,step=3,phase=data"]),
        ],
    ),
)
def test_a_rank_whose_shards_nobody_else_has_is_replaced_and_nobody_goes_back(
    shards: str, faults: list[str], undisturbed: Undisturbed, tmp_path: Path
) -> None:
    environment = {"SHARDS": shards}
    run = relay(
        tmp_path,
        "sharded.py",
        ranks=RANKS,
        spares=len(faults),
        inject=faults,
        options=ANY_COST,
        environment=environment,
    )
    assert_unharmed(run, undisturbed("sharded.py", ranks=RANKS), RANKS, faults, len(faults))
    assert {done["kind"] for done in run.committed()} == {"unplanned"}, run.told()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kept", "fault"),
    few(
        1,
        [
            ("flagged", "kill:rank=0,step=9,phase=after-step"),
            ("flagged", "stop:rank=1,step=9,phase=forward"),
            ("shared", "kill:rank=1,step=9,phase=after-step"),
            ("shared", "kill:rank=0,step=9,phase=backward"),
        ],
    ),
)
def test_a_rank_that_alone_has_some_momenta_is_replaced_and_gets_no_others(
    kept: str, fault: str, undisturbed: Undisturbed, tmp_path: Path
) -> None:
    run = relay(tmp_path, "own_optimizers.py", kept, ranks=RANKS, inject=[fault], options=ANY_COST)
    assert_unharmed(run, undisturbed("own_optimizers.py", kept, ranks=RANKS), RANKS, [fault], 1)
    assert {done["kind"] for done in run.committed()} == {"unplanned"}, run.told()


@pytest.mark.slow
@pytest.mark.parametrize(
    "how", few(1, ["passed", "update", "rebound", "dict-update", "later", "forward", "rebound-alike"])
)
def test_it_does_not_matter_where_a_step_writes_to_it_and_by_which_name(
    how: str, undisturbed: Undisturbed, tmp_path: Path
) -> None:
    fault = "kill:rank=1,step=34,phase=after-step"
    run = relay(tmp_path, "own_average.py", how, ranks=RANKS, inject=[fault], options=ANY_COST)
    assert_unharmed(run, undisturbed("own_average.py", how, ranks=RANKS), RANKS, [fault], 1)
    (done,) = run.committed()
    assert (done["kind"], done["steps_redone"] <= 1) == ("unplanned", True), run.told()
