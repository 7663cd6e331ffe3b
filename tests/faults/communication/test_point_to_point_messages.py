"""Messages between two ranks: a new process gets those of its rank again, and never goes on without one."""

from __future__ import annotations

from pathlib import Path

import pytest
from faults.conftest import Undisturbed
from support.cells import few
from support.relay_run import assert_unharmed, relay
from support.training import differences

SCRIPT, RANKS = "messages.py", 2


@pytest.mark.core
@pytest.mark.slow
@pytest.mark.parametrize(
    "fault",
    few(
        1, ["kill:rank=1,step=6,phase=backward", "kill:rank=0,step=12,phase=gate", "kill:rank=1,step=9,phase=optimizer"]
    ),
)
def test_messages_before_the_update_are_carried(fault: str, undisturbed: Undisturbed, tmp_path: Path) -> None:
    run = relay(tmp_path, SCRIPT, ranks=RANKS, inject=[fault])
    assert_unharmed(run, undisturbed(SCRIPT, ranks=RANKS), RANKS, [fault], 1)


def test_a_rank_that_is_lost_among_messages_after_the_update_ends_the_job_or_all_go_back_to_copies(
    undisturbed: Undisturbed, tmp_path: Path
) -> None:
    """Copies of the first steps are there until the controller has said that both ranks hold the same."""
    run = relay(tmp_path, SCRIPT, "late", ranks=RANKS, inject=["kill:rank=1,step=8,phase=after-step"])
    if run.status == 0:
        assert [m["kind"] for m in run.committed()] == ["rollback"], run.told()
        assert differences(undisturbed(SCRIPT, "late", ranks=RANKS), run.out, RANKS) == [], run.told()
        return
    assert run.status == 137, run.told()
    assert run.committed() == [], run.told()
    assert not list(run.out.iterdir()), run.told()
