"""A rank that says itself that it cannot go on, and one that cannot reach the others though none is lost."""

from __future__ import annotations

import signal
from pathlib import Path

from support.fake_job import FakeJob
from support.health_jobs import job_with, moved

from torchrelay.protocol import messages as msg
from torchrelay.protocol.events import MigrationFinished, MigrationStarted

LOST = "cuda:1 cannot be used any more: CUDA error: device-side assert triggered"


def end_itself(job: FakeJob, worker: str, *, by_script: bool) -> None:
    job.say(worker, msg.Unfit(LOST, by_script))
    job.die(worker, signal=signal.SIGKILL)


def test_an_unfit_rank_is_replaced_with_its_own_reason(tmp_path: Path) -> None:
    job = job_with(tmp_path)
    end_itself(job, "n0.w1", by_script=True)
    assert moved(job) == [("unplanned", 1)]
    assert job.told(MigrationStarted)[0].reason == f"rank 1 (n0.w1) ended itself: {LOST}"


def test_what_may_be_the_scripts_doing_ends_the_job_when_it_comes_again(tmp_path: Path) -> None:
    job = job_with(tmp_path, spares=2)
    end_itself(job, "n0.w1", by_script=True)
    assert moved(job) == [("unplanned", 1)]
    end_itself(job, "n0.s0", by_script=True)
    assert job.stop is not None
    assert LOST in job.stop.reason


def test_what_is_not_does_not(tmp_path: Path) -> None:
    job = job_with(tmp_path, spares=2)
    for worker in ("n0.w1", "n0.s0"):
        end_itself(job, worker, by_script=False)
        moved(job)
    assert job.stop is None
    assert moved(job) == [("unplanned", 1), ("unplanned", 1)]


def test_a_rank_that_cannot_reach_others_that_live_is_replaced(tmp_path: Path) -> None:
    job = job_with(tmp_path)
    job.say("n0.w1", msg.CommunicationFailed("Connection reset by peer", 10.0))
    assert moved(job) == [("unplanned", 1)]
    started = job.told(MigrationStarted)[0]
    assert started.reason == "rank 1 (n0.w1) cannot reach the others, of which none is lost: Connection reset by peer"
    assert job.told(MigrationFinished)[0].downtime_s["detect"] >= 10.0


def test_the_other_end_of_a_broken_connection_is_not_lost_with_it(tmp_path: Path) -> None:
    job = job_with(tmp_path, spares=2)
    for worker in ("n0.w1", "n0.w0"):
        job.say(worker, msg.CommunicationFailed("Connection reset by peer", 10.0))
    assert moved(job) == [("unplanned", 1)]
    assert job.told(MigrationFinished)[0].ranks == (1,)
