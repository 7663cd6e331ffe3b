"""What ranks held alike, and one of them has then written to for the first time, no other rank gives in its place."""

from __future__ import annotations

from pathlib import Path

import pytest
from faults.conftest import Undisturbed
from support.cells import few
from support.relay_run import relay
from support.training import differences

SCRIPT, RANKS, MOST_REDONE = "first_writes.py", 2, 20


@pytest.mark.slow
@pytest.mark.parametrize(
    ("how", "fault"),
    few(
        1,
        [
            ("memory", "kill:rank=1,step=24,phase=backward"),
            ("unfrozen", "kill:rank=1,step=24,phase=after-step"),
            ("global", "kill:rank=1,step=24,phase=after-step"),
            ("made", "kill:rank=0,step=24,phase=backward"),
            ("snapshot", "kill:rank=1,step=24,phase=backward"),
            ("memory", "kill:rank=0,step=21,phase=data"),
            ("unfrozen", "kill:rank=1,step=22,phase=forward"),
        ],
    ),
)
def test_a_lost_rank_has_what_was_its_own(how: str, fault: str, undisturbed: Undisturbed, tmp_path: Path) -> None:
    """All may go back where that was not known in time."""
    run = relay(tmp_path, SCRIPT, how, ranks=RANKS, inject=[fault])
    assert (run.status, run.faults()) == (0, [fault]), run.told()
    assert differences(undisturbed(SCRIPT, how, ranks=RANKS), run.out, RANKS) == [], run.told()
    (done,) = run.committed()
    assert done["steps_redone"] <= MOST_REDONE, run.told()
