"""Migrations of NCCL jobs on the imitated GPU: what ranks have seen is that of the undisturbed run, to the last bit."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from imitated_gpu import jobs


@pytest.mark.parametrize(
    ("ranks", "spares", "options", "faults"),
    [
        pytest.param(2, 1, (), ["kill:rank=0,step=8,phase=backward"], id="killed in backward"),
        pytest.param(2, 1, (), ["kill:rank=1,step=13,phase=after-step"], id="killed while the others make a group"),
        pytest.param(2, 1, (), ["kill:rank=1,step=14,phase=gate"], id="killed at the gate"),
        pytest.param(2, 1, (), ["stop:rank=1,step=9,phase=forward"], id="stopped while a device waits for it"),
        pytest.param(2, 1, ("slow",), ["planned:rank=0,step=10"], id="moved"),
        pytest.param(2, 0, (), ["kill:rank=0,step=8,phase=optimizer"], id="another process in its place"),
        pytest.param(2, 1, ("eager",), ["kill:rank=1,step=9,phase=forward"], id="groups split from an eager one"),
        pytest.param(2, 1, ("eager", "slow"), ["planned:rank=1,step=16"], id="moved, groups split from an eager one"),
        pytest.param(
            3, 2, (), ["kill:rank=2,step=9,phase=gate", "kill:rank=0,step=16,phase=after-step"], id="two of three"
        ),
    ],
)
def test_a_rank_on_nccl_is_replaced_and_nothing_is_computed_otherwise(
    ranks: int, spares: int, options: tuple[str, ...], faults: list[str], tmp_path: Path
) -> None:
    job = jobs.run(tmp_path, ranks, spares, options, faults)
    assert job.returncode == 0, job.output[-4000:]
    assert (job.struck, len(job.committed)) == (len(faults), len(faults)), job.output[-3000:]
    assert job.results == jobs.undisturbed(ranks, *(option for option in options if option != "slow"))


@pytest.mark.parametrize(
    ("steps", "fault"), [("25", "kill:rank=1,step=5,phase=forward"), ("300", "planned:rank=0,step=8")]
)
def test_a_gradient_scaler_goes_back_and_moves_with_its_rank(steps: str, fault: str, tmp_path: Path) -> None:
    job = jobs.run(tmp_path, 2, 1, (steps,), [fault], program="scaled.py")
    assert job.returncode == 0, job.output[-4000:]
    assert (job.struck, len(job.committed)) == (1, 1), job.output[-3000:]
    assert job.results == jobs.undisturbed(2, steps, program="scaled.py")


@pytest.mark.parametrize("fault", ["kill:rank=1,step=15,phase=backward", "kill:rank=0,step=7,phase=after-step"])
def test_a_batch_that_another_stream_still_fetches_is_captured_whole(fault: str, tmp_path: Path) -> None:
    job = jobs.run(tmp_path, 2, 1, (), [fault], program="prefetched.py")
    assert job.returncode == 0, job.output[-4000:]
    assert (job.struck, len(job.committed)) == (1, 1), job.output[-3000:]
    assert job.results == jobs.undisturbed(2, program="prefetched.py")


def test_positions_that_were_not_received_are_not_used_as_indices(tmp_path: Path) -> None:
    """An aborted broadcast leaves garbage, and an index that is garbage would end the survivor's use of its device."""
    job = jobs.run(tmp_path, 2, 1, (), ["kill:rank=0,step=6,phase=after-step"], program="positions.py")
    assert job.returncode == 0, job.output[-4000:]
    assert (job.struck, len(job.committed)) == (1, 1), job.output[-3000:]
    assert job.results == jobs.undisturbed(2, program="positions.py")


@pytest.mark.parametrize("fault", ["kill:rank=1,step=9,phase=after-step", "kill:rank=0,step=15,phase=after-step"])
def test_a_functional_collective_that_a_loss_ends_behind_the_gate_gives_no_garbage(fault: str, tmp_path: Path) -> None:
    """It returns as if nothing were wrong; what it has left is recorded by nobody, and it is called again."""
    job = jobs.run(tmp_path, 2, 1, (), [fault], program="late_results.py")
    assert job.returncode == 0, job.output[-4000:]
    assert (job.struck, len(job.committed)) == (1, 1), job.output[-3000:]
    assert job.results == jobs.undisturbed(2, program="late_results.py")


def test_what_a_rank_holds_of_its_device_does_not_grow_with_the_moves_of_another(tmp_path: Path) -> None:
    """Communicators, device memory, streams and Python threads, at each 20th step."""
    moves = 3
    asked = [f"planned:rank=1,step={step}" for step in range(300, 400 * moves, 400)]
    job = jobs.run(tmp_path, 2, 2, (str(400 * moves), "0.05"), asked, program="moved_often.py")
    assert job.returncode == 0, job.output[-4000:]
    assert (job.struck, len(job.committed)) == (moves, moves), job.output[-3000:]
    held = json.loads((tmp_path / "out" / "held0.json").read_text())
    assert held[-1][1] == 2, "a communicator for each of the two groups"
    settled = [amounts for step, *amounts in held if step >= 100]
    assert all(amounts == settled[0] for amounts in settled), settled
