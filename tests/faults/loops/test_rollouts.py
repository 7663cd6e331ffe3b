"""The first update comes in a later iteration of the loop around it: who replaces a rank has to be led into that iteration."""

from __future__ import annotations

from pathlib import Path

import pytest
from faults.conftest import Undisturbed
from support.cells import few
from support.relay_run import assert_unharmed, relay

SCRIPT, RANKS = "rollouts.py", 2


@pytest.mark.slow
@pytest.mark.parametrize(
    "fault",
    few(
        1,
        [
            "kill:rank=0,step=3,phase=after-step",
            "kill:rank=1,step=2,phase=backward",
            "kill:rank=1,step=4,phase=after-step",
            "kill:rank=0,step=4,phase=gate",
            "kill:rank=0,step=7,phase=after-step",
            "kill:rank=1,step=1,phase=after-step",
        ],
    ),
)
def test_a_rank_is_replaced_in_the_updates_behind_a_rollout(
    fault: str, undisturbed: Undisturbed, tmp_path: Path
) -> None:
    run = relay(tmp_path, SCRIPT, "seen", ranks=RANKS, inject=[fault])
    assert_unharmed(run, undisturbed(SCRIPT, "seen", ranks=RANKS), RANKS, [fault], 1)


def test_where_nothing_tells_that_the_loop_trains_it_is_said_that_a_rank_cannot_be_replaced_yet(tmp_path: Path) -> None:
    fault = "kill:rank=0,step=3,phase=after-step"
    run = relay(tmp_path, SCRIPT, "hidden", ranks=RANKS, inject=[fault], options=["--buddy-every=0"])
    assert run.faults() == [fault], run.told()
    assert run.committed() == [], run.told()
    assert run.status not in (0, 76), run.told()
    assert "which had gone round before it was seen to train" in str(run.named("coverage")), run.told()
    assert run.named("incident") == [], "no promise was broken"
