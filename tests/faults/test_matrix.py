"""The instructive cells of phase, rank and kind, with the script whose state is the richest."""

from __future__ import annotations

from pathlib import Path

import pytest
from faults.conftest import Undisturbed
from support.relay_run import assert_unharmed, relay
from support.training import steps_done

SCRIPT, RANKS, STEPS, PER_EPOCH = "ddp.py", 3, 66, 11


def test_without_faults_a_run_is_that_of_torchrun(undisturbed: Undisturbed, tmp_path: Path) -> None:
    reference = undisturbed(SCRIPT, ranks=RANKS)
    assert steps_done(reference) == STEPS
    run = relay(tmp_path, SCRIPT, ranks=RANKS, spares=0)
    assert_unharmed(run, reference, RANKS, [], 0)


@pytest.mark.parametrize(
    "fault",
    [
        pytest.param(f"kill:rank=0,step={STEPS},phase=after-step", id="rank 0 after its last step"),
        pytest.param("kill:rank=1,step=1,phase=backward", id="before the training loop is known"),
        pytest.param("kill:rank=1,step=1,phase=after-step", id="before the buckets are rebuilt"),
        pytest.param(f"kill:rank=2,step={PER_EPOCH + 1},phase=data", id="the first batch of an epoch"),
        pytest.param("kill:rank=0,step=20,phase=gate", id="in the gate"),
        pytest.param("kill:rank=1,step=21,phase=optimizer", id="some past the gate"),
        pytest.param("stop:rank=2,step=15,phase=forward", id="a hang"),
    ],
)
def test_a_loss_leaves_no_trace(fault: str, undisturbed: Undisturbed, tmp_path: Path) -> None:
    run = relay(tmp_path, SCRIPT, ranks=RANKS, inject=[fault])
    assert_unharmed(run, undisturbed(SCRIPT, ranks=RANKS), RANKS, [fault], 1)


def test_rank_0_is_moved_while_it_trains(undisturbed: Undisturbed, tmp_path: Path) -> None:
    run = relay(tmp_path, SCRIPT, ranks=RANKS, inject=["planned:rank=0,step=5"], planned_at=[5])
    fault = "planned:rank=0,step=5,phase=forward"
    assert_unharmed(run, undisturbed(SCRIPT, ranks=RANKS), RANKS, [fault], 1)
    (migration,) = run.committed()
    assert (migration["kind"], migration["rank"], migration["steps_redone"]) == ("planned", 0, 0)
