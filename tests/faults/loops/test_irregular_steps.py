"""Optimizer steps behind the loop that trains: ranks are lost in that loop, in such a step, and in what follows it."""

from __future__ import annotations

from pathlib import Path

import pytest
from faults.conftest import Undisturbed
from support.cells import few, only_in_long
from support.relay_run import assert_unharmed, relay
from support.training import differences

SCRIPT, RANKS = "irregular.py", 2


@pytest.mark.core
@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "faults"),
    few(
        1,
        [
            ("left-over", ["kill:rank=1,step=5,phase=backward", "kill:rank=0,step=9,phase=after-step"]),
            ("critic", ["kill:rank=0,step=9,phase=backward", "kill:rank=1,step=13,phase=after-step"]),
            ("left-over", ["kill:rank=1,step=6,phase=optimizer", "kill:rank=0,step=8,phase=forward"]),
            ("left-over", ["kill:rank=0,step=3,phase=after-step", "kill:rank=1,step=7,phase=gate"]),
            ("critic", ["kill:rank=1,step=8,phase=gate", "kill:rank=0,step=12,phase=optimizer"]),
            ("callbacks", ["kill:rank=1,step=5,phase=backward", "kill:rank=0,step=9,phase=after-step"]),
            ("dropped", ["kill:rank=1,step=5,phase=backward", "kill:rank=0,step=9,phase=after-step"]),
            ("returned", ["kill:rank=1,step=5,phase=backward", "kill:rank=0,step=9,phase=after-step"]),
        ],
    ),
)
def test_ranks_are_replaced(kind: str, faults: list[str], undisturbed: Undisturbed, tmp_path: Path) -> None:
    run = relay(tmp_path, SCRIPT, kind, ranks=RANKS, spares=2, inject=faults)
    assert_unharmed(run, undisturbed(SCRIPT, kind, ranks=RANKS), RANKS, faults, 2)


@only_in_long
def test_a_rank_is_replaced_in_the_evaluation_behind_such_a_step(undisturbed: Undisturbed, tmp_path: Path) -> None:
    struck = tmp_path / "struck"
    environment = {"STRIKE": "evaluation-1:1", "STRUCK": str(struck)}
    run = relay(tmp_path, SCRIPT, "left-over", ranks=RANKS, environment=environment)
    assert struck.exists(), run.told()
    assert_unharmed(run, undisturbed(SCRIPT, "left-over", ranks=RANKS), RANKS, [], 1)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("how", "fault"),
    few(
        1,
        [
            ("data", "kill:rank=1,step=10,phase=forward"),
            ("counted", "kill:rank=0,step=12,phase=data"),
            ("data", "kill:rank=0,step=9,phase=after-step"),
            ("counted", "kill:rank=1,step=8,phase=backward"),
        ],
    ),
)
def test_what_lies_behind_fewer_updates_than_other_iterations_make_is_taken_back(
    how: str, fault: str, undisturbed: Undisturbed, tmp_path: Path
) -> None:
    run = relay(tmp_path, "targets.py", how, ranks=RANKS, inject=[fault])
    assert_unharmed(run, undisturbed("targets.py", how, ranks=RANKS), RANKS, [fault], 1)


@pytest.mark.slow
def test_several_updates_in_a_comprehension_that_computes_are_told_and_nobody_is_replaced(
    undisturbed: Undisturbed, tmp_path: Path
) -> None:
    """What it has made of weights before their update is in no variable: a new process would make it of later ones."""
    script, fault = "comprehension.py", "kill:rank=0,step=3,phase=after-step"
    run = relay(tmp_path, script, "steps", ranks=RANKS, inject=[fault], options=("--max-restarts", "1"))
    assert run.faults() == [fault], run.told()
    assert not run.committed(), run.told()
    assert "are made within a comprehension, whose items nobody else has" in run.told()
    assert differences(undisturbed(script, "steps", ranks=RANKS), run.out, RANKS) == [], run.told()


@pytest.mark.slow
def test_a_comprehension_that_only_steps_optimizers_is_gone_through(undisturbed: Undisturbed, tmp_path: Path) -> None:
    script, faults = "comprehension.py", ["kill:rank=0,step=3,phase=after-step", "kill:rank=1,step=6,phase=backward"]
    run = relay(tmp_path, script, "optimizers", ranks=RANKS, spares=2, inject=faults)
    assert_unharmed(run, undisturbed(script, "optimizers", ranks=RANKS), RANKS, faults, 2)
