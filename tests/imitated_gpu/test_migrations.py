"""Migrations of NCCL jobs on the imitated GPU: what ranks have seen is that of the undisturbed run, to the last bit."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from imitated_gpu import jobs

DETECTION_S, SLACK_S = 5.0, 4.0
"""As for gloo (tests/faults/failures/test_hangs.py)."""
ROUNDS = int(os.environ.get("TORCHRELAY_TEST_ROUNDS", "3"))
"""How often a rank moves beside one that is watched."""
LONGEST_S = 100 + 60 * ROUNDS
SETTLED = 100
"""The step from which on all that a job needs of its device is there."""
MOVED_ONCE = 400
"""The step by which the other rank has moved once. A generation of ours has a store and a gate, which the first one has not."""
STREAMS, GROUPS = 32, 2
"""Each new communicator takes the next stream of torch's pool. The imitation has a thread for each, from its first use on."""
PASSING_DESCRIPTORS, PASSING_THREADS = 24, 16
"""Of two generations at once, while one is exchanged for the other."""
GROWTH_KIB, GROWTH_OF_A_MOVE_KIB = 8 << 10, 256
"""A job that is never moved grows by 4 MiB in 4,000 steps."""


@pytest.mark.parametrize(
    ("ranks", "spares", "options", "faults"),
    [
        pytest.param(2, 1, (), ["kill:rank=0,step=8,phase=backward"], id="killed in backward"),
        pytest.param(2, 1, (), ["kill:rank=1,step=13,phase=after-step"], id="killed while the others make a group"),
        pytest.param(2, 1, (), ["kill:rank=1,step=14,phase=gate"], id="killed at the gate"),
        pytest.param(2, 1, ("slow",), ["planned:rank=0,step=10"], id="moved"),
        pytest.param(2, 0, (), ["kill:rank=0,step=8,phase=optimizer"], id="another process in its place"),
        pytest.param(2, 1, ("eager",), ["kill:rank=1,step=9,phase=forward"], id="groups split from an eager one"),
        pytest.param(2, 1, ("capturable",), ["kill:rank=1,step=8,phase=backward"], id="count of steps on the device"),
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


def test_a_rank_that_stops_while_a_device_waits_for_it_is_named_and_found_in_time(tmp_path: Path) -> None:
    job = jobs.run(tmp_path, 2, 1, (), ["stop:rank=1,step=9,phase=forward"])
    assert job.returncode == 0, job.output[-4000:]
    (end,) = job.committed
    (suspicion,) = job.named("suspected")
    assert suspicion["rank"] == 1, "the other one waits on its device, and not on its host"
    assert "stopped (state T)" in suspicion["reason"]
    assert end["downtime_s"]["detect"] < DETECTION_S + SLACK_S
    assert job.results == jobs.undisturbed(2)


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


def test_random_numbers_of_each_device_that_a_rank_uses_move_with_it(tmp_path: Path) -> None:
    job = jobs.run(tmp_path, 2, 1, (), ["kill:rank=1,step=9,phase=backward"], program="two_devices.py")
    assert job.returncode == 0, job.output[-4000:]
    assert (job.struck, len(job.committed)) == (1, 1), job.output[-3000:]
    assert job.results == jobs.undisturbed(2, program="two_devices.py")


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


@pytest.mark.timeout(60 + LONGEST_S)
def test_what_a_rank_holds_does_not_grow_with_the_moves_of_another(tmp_path: Path) -> None:
    """Of its device: communicators, memory, streams. Of the system: memory, descriptors, threads. At each 20th step."""
    moves, asked = ROUNDS, [f"planned:rank=1,step={step}" for step in range(300, 400 * ROUNDS, 400)]
    job = jobs.run(tmp_path, 2, 3, (str(400 * moves), "0.05"), asked, program="moved_often.py", run_s=LONGEST_S)
    assert job.returncode == 0, job.output[-4000:]
    assert (job.struck, len(job.committed)) == (moves, moves), job.output[-3000:]
    held = json.loads((tmp_path / "out" / "held0.json").read_text())
    assert held[-1][1] == GROUPS, "a communicator for each of the two groups"
    settled = [amounts for step, *amounts in held if step >= SETTLED]
    assert all(amounts == settled[0] for amounts in settled), settled
    process = json.loads((tmp_path / "out" / "process0.json").read_text())
    before, *later = [amounts for step, *amounts in process if step >= MOVED_ONCE]
    memory_kib, descriptors, threads = zip(*later)
    assert max(descriptors) <= before[1] + PASSING_DESCRIPTORS, descriptors
    assert descriptors[-1] <= before[1], descriptors
    of_streams = min(STREAMS, GROUPS * moves)
    assert max(threads) <= before[2] + of_streams + PASSING_THREADS, threads
    assert threads[-1] <= before[2] + of_streams, threads
    assert memory_kib[-1] <= before[0] + GROWTH_KIB + moves * GROWTH_OF_A_MOVE_KIB, memory_kib
