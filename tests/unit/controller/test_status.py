"""What 'torchrelay status' is told."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.fake_job import FakeJob

from torchrelay.protocol import messages as msg


@pytest.fixture
def job(tmp_path: Path) -> FakeJob:
    job = FakeJob(tmp_path)
    job.train()
    return job


def test_status_shows_ranks_spares_and_the_last_migration(job: FakeJob) -> None:
    status = job.core.status(job.now_s)
    assert [(r.rank, r.worker, r.boundary, r.state) for r in status.ranks] == [
        (r, f"n0.w{r}", 5, "running") for r in range(3)
    ]
    assert (status.spares_warm, status.spares_total, status.protection, status.generation) == (1, 1, "armed", 0)
    job.mute.add("n0.s0")
    job.die("n0.w1")
    job.settle()
    assert [r.state for r in job.core.status(job.now_s).ranks] == ["standing", "lost", "standing"]
    assert job.core.status(job.now_s).last_migration.startswith("m1 (unplanned, rank 1): prepare")
    job.mute.clear()
    job.say("n0.s0", msg.Prepared(1, "h", 1))
    job.settle()
    status = job.core.status(job.now_s)
    assert [r.worker for r in status.ranks] == ["n0.w0", "n0.s0", "n0.w2"]
    assert (status.migrations_done, status.generation, status.spares_total) == (1, 1, 0)
