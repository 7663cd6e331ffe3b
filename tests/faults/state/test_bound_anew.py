"""Names that training lets mean other functions, classes and modules do so in a new process, and hooks stay where they are."""

from __future__ import annotations

from pathlib import Path

import pytest
from faults.conftest import Undisturbed
from support.cells import few
from support.relay_run import assert_unharmed, relay

RANKS = 2
FAULTS = ["kill:rank=1,step=9,phase=backward", "kill:rank=0,step=14,phase=after-step"]


@pytest.mark.slow
def test_a_rank_whose_names_mean_something_else_is_replaced(undisturbed: Undisturbed, tmp_path: Path) -> None:
    run = relay(tmp_path, "bound_anew.py", ranks=RANKS, spares=2, inject=FAULTS)
    assert_unharmed(run, undisturbed("bound_anew.py", ranks=RANKS), RANKS, FAULTS, 2)


@pytest.mark.slow
def test_hooks_that_each_step_removes_are_no_obstacle(undisturbed: Undisturbed, tmp_path: Path) -> None:
    script = "hooks_of_training.py"
    run = relay(tmp_path, script, "removes", ranks=RANKS, spares=2, inject=FAULTS)
    assert_unharmed(run, undisturbed(script, "removes", ranks=RANKS), RANKS, FAULTS, 2)


@pytest.mark.slow
@pytest.mark.parametrize("how", few(2, ["keeps", "library", "exchanges"]))
def test_hooks_that_training_keeps_are_registered_again(how: str, undisturbed: Undisturbed, tmp_path: Path) -> None:
    script = "hooks_of_training.py"
    run = relay(tmp_path, script, how, ranks=RANKS, spares=2, inject=FAULTS)
    assert_unharmed(run, undisturbed(script, how, ranks=RANKS), RANKS, FAULTS, 2)


@pytest.mark.slow
def test_no_rank_is_replaced_where_training_hangs_a_hook_on_the_wrapper(tmp_path: Path) -> None:
    run = relay(tmp_path, "hooks_of_training.py", "wrapper", ranks=RANKS, spares=1, inject=FAULTS[:1])
    assert run.status != 0, run.told()
    assert run.committed() == [], run.told()
    reports = [event for event in run.named("rank_report") if event["rank"] == 0]
    assert any("a hook of a DistributedDataParallel itself" in text for text in reports[-1]["unprotected"]), reports[-1]


@pytest.mark.slow
def test_a_process_that_took_over_hands_hooks_on(undisturbed: Undisturbed, tmp_path: Path) -> None:
    script = "hooks_of_training.py"
    faults = ["kill:rank=1,step=9,phase=backward", "kill:rank=1,step=16,phase=backward"]
    run = relay(tmp_path, script, "exchanges", ranks=RANKS, spares=2, inject=faults)
    assert_unharmed(run, undisturbed(script, "exchanges", ranks=RANKS), RANKS, faults, 2)
