"""A survivor whose communicators do not come loose from a lost peer: it is replaced, too, and soon."""

from __future__ import annotations

from pathlib import Path

import pytest

from imitated_gpu import jobs
from imitated_gpu.faults import Fault

DOWNTIME_S = 30.0
"""Ten of them until it is stuck for certain, and what a busy machine needs to start a process in its place."""


@pytest.mark.parametrize(
    ("phase", "spares"),
    [
        pytest.param("forward", 2, id="the training thread waits on the device, too"),
        pytest.param("backward", 2, id="the rank stands"),
        pytest.param("backward", 1, id="another process in its place"),
    ],
)
def test_a_survivor_that_cannot_abort_is_replaced_and_says_why(phase: str, spares: int, tmp_path: Path) -> None:
    job = jobs.run(tmp_path, 3, spares, ["stuck_abort:1:8"], [f"kill:rank=0,step=8,phase={phase}"])
    assert job.returncode == 0, job.output[-4000:]
    assert [firing.fault for firing in job.fired] == [Fault.STUCK_ABORT]
    assert [end["ranks"] for end in job.committed] == [[0, 1]], "rank 2 lives on"
    assert job.losses == [
        "rank 0 (n0.w0) was killed by SIGKILL",
        "rank 1 (n0.w1) ended itself during a migration: a communicator of NCCL was not aborted within 10 s",
    ]
    assert sum(job.committed[0]["downtime_s"].values()) < DOWNTIME_S
    assert job.results == jobs.undisturbed(3)
