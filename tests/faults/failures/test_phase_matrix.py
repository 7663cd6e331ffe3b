"""The instructive cells of phase, rank and kind, with the script whose state is the richest."""

from __future__ import annotations

from pathlib import Path

import pytest
from faults.conftest import Undisturbed
from support.cells import few, only_in_long
from support.relay_run import assert_unharmed, relay
from support.training import steps_done

SCRIPT, RANKS, STEPS, PER_EPOCH = "ddp.py", 3, 66, 11


@pytest.mark.core
def test_without_faults_a_run_is_that_of_torchrun(undisturbed: Undisturbed, tmp_path: Path) -> None:
    reference = undisturbed(SCRIPT, ranks=RANKS)
    assert steps_done(reference) == STEPS
    run = relay(tmp_path, SCRIPT, ranks=RANKS, spares=0)
    assert_unharmed(run, reference, RANKS, [], 0)


CELLS = {
    "before the training loop is known": "kill:rank=1,step=1,phase=backward",
    "the first batch of an epoch": f"kill:rank=2,step={PER_EPOCH + 1},phase=data",
    "in the gate": "kill:rank=0,step=20,phase=gate",
    "before the buckets are rebuilt": "kill:rank=1,step=1,phase=after-step",
    "some past the gate": "kill:rank=1,step=21,phase=optimizer",
    "a hang": "stop:rank=2,step=40,phase=forward",
    "rank 0 after its last step": f"kill:rank=0,step={STEPS},phase=after-step",
}
FAULTS = list(CELLS.values())


@pytest.mark.core
@pytest.mark.slow
@pytest.mark.parametrize(
    "faults",
    few(
        1,
        [
            pytest.param(FAULTS[:3], id="from the first step on"),
            pytest.param(FAULTS[3:], id="up to the last step"),
            *(pytest.param([fault], id=cell) for cell, fault in CELLS.items()),
        ],
    ),
)
def test_losses_leave_no_trace(faults: list[str], undisturbed: Undisturbed, tmp_path: Path) -> None:
    run = relay(tmp_path, SCRIPT, ranks=RANKS, spares=len(faults), inject=faults)
    assert_unharmed(run, undisturbed(SCRIPT, ranks=RANKS), RANKS, faults, len(faults))


@only_in_long
def test_all_ranks_that_hold_the_same_give_at_once(undisturbed: Undisturbed, tmp_path: Path) -> None:
    # Stopped and not killed: the others stand in the same collective when that is noticed.
    fault = "stop:rank=1,step=20,phase=backward"
    run = relay(tmp_path, SCRIPT, ranks=RANKS, inject=[fault])
    assert_unharmed(run, undisturbed(SCRIPT, ranks=RANKS), RANKS, [fault], 1)
    decided = [e["text"] for e in run.named("decision")]
    assert any("ranks 0 and 2, which hold the same, give their tensors to rank 1" in text for text in decided), (
        run.told()
    )


@pytest.mark.core
def test_rank_0_is_moved_while_it_trains(undisturbed: Undisturbed, tmp_path: Path) -> None:
    run = relay(tmp_path, SCRIPT, ranks=RANKS, inject=["planned:rank=0,step=5"], planned_at=[5])
    fault = "planned:rank=0,step=5,phase=forward"
    assert_unharmed(run, undisturbed(SCRIPT, ranks=RANKS), RANKS, [fault], 1)
    (migration,) = run.committed()
    assert (migration["kind"], migration["rank"], migration["steps_redone"]) == ("planned", 0, 0)
