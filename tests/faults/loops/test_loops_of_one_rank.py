"""A loop that only one rank runs, between two epochs, and that seems to train: the others go on in the training loop."""

from __future__ import annotations

from pathlib import Path

import pytest
from faults.conftest import Undisturbed
from support.cells import few
from support.relay_run import assert_unharmed, relay

SCRIPT, RANKS = "shown_between_epochs.py", 2


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "stays", "fault"),
    few(
        1,
        [
            ("grad", "", "kill:rank=1,step=8,phase=backward"),
            ("grad", "before", "kill:rank=1,step=8,phase=forward"),
            ("grad", "inside", "kill:rank=1,step=8,phase=forward"),
            ("grad", "behind", "kill:rank=1,step=8,phase=forward"),
            ("no_grad", "before", "kill:rank=1,step=8,phase=forward"),
            ("no_grad", "inside", "kill:rank=1,step=8,phase=forward"),
            ("grad", "", "kill:rank=0,step=8,phase=backward"),
            ("grad", "", "kill:rank=1,step=15,phase=after-step"),
        ],
    ),
)
def test_a_rank_is_replaced_in_the_first_step_behind_it(
    kind: str, stays: str, fault: str, undisturbed: Undisturbed, tmp_path: Path
) -> None:
    environment = {"STAYS": stays, "EVENTS": str(tmp_path / "events.jsonl")}
    run = relay(tmp_path, SCRIPT, kind, ranks=RANKS, inject=[fault], environment=environment)
    assert_unharmed(run, undisturbed(SCRIPT, kind, ranks=RANKS), RANKS, [fault], 1)


@pytest.mark.slow
def test_the_rank_that_evaluates_alone_is_replaced(undisturbed: Undisturbed, tmp_path: Path) -> None:
    environment = {"STRIKE": "inside:0", "STRUCK": str(tmp_path / "struck")}
    run = relay(tmp_path, SCRIPT, "own", ranks=RANKS, environment=environment)
    assert_unharmed(run, undisturbed(SCRIPT, "own", ranks=RANKS), RANKS, [], 1)
