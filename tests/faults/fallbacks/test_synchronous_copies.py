"""Copies that are whole on all ranks before the next step begins: a loss costs no more than the steps since then."""

from __future__ import annotations

from pathlib import Path

import pytest
from faults.conftest import Undisturbed
from support.cells import few, only_in_long
from support.relay_run import relay
from support.training import differences

SCRIPT, RANKS = "sharded.py", 2


@pytest.mark.slow
@pytest.mark.parametrize(
    ("fault", "every", "redone"),
    few(
        1,
        [
            pytest.param("kill:rank=1,step=8,phase=copy", 1, 1, id="in the middle of its copy"),
            pytest.param("kill:rank=1,step=6,phase=after-step", 3, 3, id="just before a head with copies"),
            pytest.param("kill:rank=0,step=8,phase=optimizer", 1, 1, id="in its update"),
        ],
    ),
)
def test_no_more_is_done_again_than_the_steps_since_the_latest_head_with_copies(
    fault: str, every: int, redone: int, undisturbed: Undisturbed, tmp_path: Path
) -> None:
    run = relay(tmp_path, SCRIPT, ranks=RANKS, inject=[fault], options=[f"--buddy-every={every}", "--buddy-sync"])
    assert (run.status, run.faults()) == (0, [fault]), run.told()
    assert [(m["kind"], m["steps_redone"]) for m in run.committed()] == [("rollback", redone)], run.told()
    assert differences(undisturbed(SCRIPT, ranks=RANKS), run.out, RANKS) == [], run.told()


@only_in_long
def test_ranks_that_hold_the_same_do_not_wait_for_each_other_for_ever(undisturbed: Undisturbed, tmp_path: Path) -> None:
    faults = ["kill:rank=1,step=20,phase=backward", "kill:rank=0,step=35,phase=after-step"]
    run = relay(tmp_path, "ddp.py", ranks=2, spares=2, inject=faults, options=["--buddy-every=2", "--buddy-sync"])
    assert run.status == 0, run.told()
    assert [m["kind"] for m in run.committed()] == ["unplanned"] * 2, run.told()
    assert differences(undisturbed("ddp.py", ranks=2), run.out, 2) == [], run.told()
