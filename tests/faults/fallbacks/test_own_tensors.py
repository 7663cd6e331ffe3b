"""What one rank alone holds, and steps write to behind their update: its loss takes nobody back."""

from __future__ import annotations

from pathlib import Path

import pytest
from faults.conftest import Undisturbed
from support.cells import few
from support.relay_run import assert_unharmed, relay
from support.training import differences

RANKS = 2
MOST_REDONE = 20


@pytest.mark.slow
@pytest.mark.parametrize(
    ("how", "fault"),
    few(
        3,
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
    run = relay(tmp_path, "own_average.py", how, ranks=RANKS, inject=[fault])
    assert_unharmed(run, undisturbed("own_average.py", how, ranks=RANKS), RANKS, [fault], 1)
    (done,) = run.committed()
    assert (done["kind"], done["steps_redone"] <= 1) == ("unplanned", True), run.told()
    assert any("copied at the head of each step" in e["text"] for e in run.named("decision")), run.told()


@pytest.mark.slow
def test_the_rank_is_lost_again_before_its_next_head(undisturbed: Undisturbed, tmp_path: Path) -> None:
    """The copy that the first new process has come from is there for the second one."""
    faults = ["kill:rank=1,step=33,phase=gate", "kill:rank=1,step=33,phase=backward"]
    run = relay(tmp_path, "own_average.py", "behind", ranks=RANKS, spares=2, inject=faults)
    assert_unharmed(run, undisturbed("own_average.py", "behind", ranks=RANKS), RANKS, faults, 2)
    assert {done["kind"] for done in run.committed()} == {"unplanned"}, run.told()


@pytest.mark.slow
@pytest.mark.parametrize("how", few(1, ["dict-update", "later", "update", "forward", "rebound"]))
def test_all_go_back_where_a_step_writes_to_it_up_to_the_end_of_its_update(
    how: str, undisturbed: Undisturbed, tmp_path: Path
) -> None:
    """A new process cannot do again what the update has written."""
    fault = "kill:rank=1,step=34,phase=after-step"
    run = relay(tmp_path, "own_average.py", how, ranks=RANKS, inject=[fault])
    assert (run.status, run.faults()) == (0, [fault]), run.told()
    assert differences(undisturbed("own_average.py", how, ranks=RANKS), run.out, RANKS) == [], run.told()
    (done,) = run.committed()
    assert done["kind"] == "rollback" or done["steps_redone"] <= 1, run.told()
