"""What the class of a loader, or the script, keeps on it is state: an iterator, counters, a list. So is what wraps a loader."""

from __future__ import annotations

from pathlib import Path

import pytest
from faults.conftest import Undisturbed
from support.cells import few, only_in_long
from support.relay_run import assert_unharmed, relay

SCRIPT, RANKS = "own_loaders.py", 2


@pytest.mark.core
@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "workers", "fault"),
    few(
        1,
        [
            ("together", "0", "kill:rank=1,step=9,phase=backward"),
            ("shown", "1", "kill:rank=0,step=9,phase=backward"),
            ("agreed", "0", "kill:rank=1,step=9,phase=backward"),
            ("asked", "0", "kill:rank=1,step=9,phase=data"),
            ("looped", "0", "kill:rank=0,step=10,phase=backward"),
            ("endless", "1", "kill:rank=1,step=9,phase=backward"),
            ("cycled", "0", "kill:rank=1,step=9,phase=backward"),
            ("asked", "1", "kill:rank=0,step=8,phase=after-step"),
            ("looped", "1", "kill:rank=1,step=14,phase=data"),
            ("endless", "0", "kill:rank=0,step=15,phase=after-step"),
            ("looped", "0", "kill:rank=1,step=6,phase=after-step"),
            ("agreed", "1", "kill:rank=0,step=3,phase=after-step"),
            ("agreed", "0", "kill:rank=0,step=7,phase=data"),
            ("shown", "0", "kill:rank=1,step=15,phase=backward"),
            ("shown", "1", "kill:rank=1,step=14,phase=data"),
            ("together", "1", "kill:rank=0,step=14,phase=data"),
            ("together", "0", "kill:rank=0,step=15,phase=after-step"),
            ("together", "0", "kill:rank=1,step=7,phase=forward"),
        ],
    ),
)
def test_a_rank_is_replaced(kind: str, workers: str, fault: str, undisturbed: Undisturbed, tmp_path: Path) -> None:
    run = relay(tmp_path, SCRIPT, kind, workers, ranks=RANKS, inject=[fault])
    assert_unharmed(run, undisturbed(SCRIPT, kind, workers, ranks=RANKS), RANKS, [fault], 1)


@only_in_long
@pytest.mark.parametrize("rank", few(1, [1, 0]))
def test_a_rank_is_replaced_twice_in_an_epoch_that_others_had_begun_before_its_first_loss(
    rank: int, undisturbed: Undisturbed, tmp_path: Path
) -> None:
    """The first new process finds the epoch's communication done. The second one has to know of it, too."""
    struck, faults = tmp_path / "struck", [f"kill:rank={rank},step=10,phase=backward"]
    environment = {"LOSE_BEHIND_OTHERS": f"{rank}:7", "STRUCK": str(struck), "HOLD_FOLDER": str(tmp_path)}
    run = relay(tmp_path, SCRIPT, "begun", "0", ranks=RANKS, spares=2, inject=faults, environment=environment)
    assert struck.exists(), run.told()
    assert_unharmed(run, undisturbed(SCRIPT, "begun", "0", ranks=RANKS), RANKS, faults, 2)


@only_in_long
@pytest.mark.parametrize("kind", ["asked", "looped", "endless", "cycled"])
def test_a_rank_is_moved(kind: str, undisturbed: Undisturbed, tmp_path: Path) -> None:
    fault = "planned:rank=1,step=8"
    run = relay(
        tmp_path, SCRIPT, kind, "0", ranks=RANKS, inject=[fault], planned_at=[8], environment={"STEP_S": "0.08"}
    )
    assert_unharmed(run, undisturbed(SCRIPT, kind, "0", ranks=RANKS), RANKS, [f"{fault},phase=forward"], 1)
