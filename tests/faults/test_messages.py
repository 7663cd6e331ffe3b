"""Messages between two ranks: a new process gets those of its rank again, and never goes on without one."""

from __future__ import annotations

from pathlib import Path

import pytest
from faults.conftest import Undisturbed
from support.relay_run import assert_unharmed, relay

SCRIPT, RANKS = "messages.py", 2


@pytest.mark.parametrize(
    "fault",
    ["kill:rank=1,step=6,phase=backward", "kill:rank=1,step=9,phase=optimizer", "kill:rank=0,step=12,phase=gate"],
)
def test_messages_before_the_update_are_carried(fault: str, undisturbed: Undisturbed, tmp_path: Path) -> None:
    run = relay(tmp_path, SCRIPT, ranks=RANKS, inject=[fault])
    assert_unharmed(run, undisturbed(SCRIPT, ranks=RANKS), RANKS, [fault], 1)


def test_a_rank_that_is_lost_among_messages_after_the_update_is_refused(tmp_path: Path) -> None:
    run = relay(tmp_path, SCRIPT, "late", ranks=RANKS, inject=["kill:rank=1,step=8,phase=after-step"])
    assert run.status not in (0, 76), run.told()
    assert run.committed() == [], run.told()
    assert not list(run.out.iterdir()), run.told()
