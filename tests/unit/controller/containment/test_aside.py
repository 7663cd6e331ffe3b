"""A job for which nothing is decided any more takes no more of the controller, whatever its agents say."""

from __future__ import annotations

from pathlib import Path

from support.fake_job import FakeJob

from torchrelay.controller.containment.aside import MOST_OF_A_NODE
from torchrelay.protocol import messages as msg


def aside(folder: Path) -> FakeJob:
    job = FakeJob(folder)
    job.train()
    job.core.set_aside("a fault", job.now_s)
    return job


def test_an_agent_that_starts_processes_without_end_is_not_remembered_without_end(tmp_path: Path) -> None:
    job = aside(tmp_path)
    for number in range(4 * MOST_OF_A_NODE):
        job.core.receive("n0", msg.WorkerStarted(f"n0.x{number}", number, 1), job.now_s)
    assert len(job.core.job.workers) <= MOST_OF_A_NODE
    assert len(job.core.job.holders) <= MOST_OF_A_NODE
    assert {"n0.w0", "n0.w1", "n0.w2"} <= job.core.job.workers.keys()


def test_one_that_starts_again_what_has_ended_is_known_as_long_as_it_does(tmp_path: Path) -> None:
    job = aside(tmp_path)
    for number in range(4 * MOST_OF_A_NODE):
        job.core.receive("n0", msg.WorkerStarted(f"n0.x{number}", -1, 1), job.now_s)
        job.core.receive("n0", msg.WorkerExited(f"n0.x{number}", 0, 0, False), job.now_s)
    job.core.receive("n0", msg.WorkerStarted("n0.last", -1, 1), job.now_s)
    assert "n0.last" in job.core.job.workers
    assert len(job.core.job.workers) <= MOST_OF_A_NODE
