"""What is asked of a running job: done, refused with the reason, or kept until its time comes."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.fake_job import FakeJob

from torchrelay.protocol import events
from torchrelay.protocol import messages as msg


@pytest.fixture
def job(tmp_path: Path) -> FakeJob:
    job = FakeJob(tmp_path)
    job.train()
    return job


def refusal(job: FakeJob, rank: int = 1) -> str:
    reply = job.core.user_requests.migrate(msg.MigrateRequest(rank, "why not"), job.now_s)
    assert not reply.accepted
    assert reply.migration == ""
    return reply.message


@pytest.mark.parametrize("rank", [-1, 3])
def test_there_must_be_such_a_rank(job: FakeJob, rank: int) -> None:
    assert refusal(job, rank) == f"there is no rank {rank}; the job has ranks 0 to 2"


def test_there_must_be_a_spare(tmp_path: Path) -> None:
    job = FakeJob(tmp_path, spares=0)
    job.train()
    assert "there is no spare" in refusal(job)


def test_the_spare_must_be_warm(tmp_path: Path) -> None:
    job = FakeJob(tmp_path)
    job.warm = lambda: None  # type: ignore[method-assign]  # in its place for this test
    job.train()
    assert "still starting" in refusal(job)


def test_one_migration_at_a_time(job: FakeJob) -> None:
    assert job.core.user_requests.migrate(msg.MigrateRequest(1, ""), job.now_s).accepted
    assert refusal(job, 2) == "m1 is under way (rank 1, prepare); ask again when it is over"


def test_the_training_loop_must_have_been_reached(tmp_path: Path) -> None:
    job = FakeJob(tmp_path)
    job.warm()
    assert refusal(job) == "not yet: no rank has set up its process group yet"
    for rank in range(3):
        job.say(f"n0.w{rank}", msg.Armed(rank, 3, "gloo", "2"))
    assert refusal(job) == "not yet: ranks 0, 1, 2 have not reached their training loop yet"


def test_the_job_must_be_protected(tmp_path: Path) -> None:
    job = FakeJob(tmp_path)
    job.warm()
    job.say("n0.w0", msg.Disabled("no torch"))
    assert refusal(job) == "this job is not protected: rank 0: no torch"


def test_a_rank_that_is_through_stays_where_it_is(job: FakeJob) -> None:
    job.say("n0.w1", msg.Finishing(5))
    assert "end of its script" in refusal(job)


def test_a_job_that_ends_moves_nothing(job: FakeJob) -> None:
    job.core.user_requests.stop(15)
    assert refusal(job) == "the job is ending"


def test_the_end_of_the_job_says_who_asked_for_it(job: FakeJob) -> None:
    job.core.user_requests.stop(15, "alice")
    job.tick()
    assert job.told(events.JobFinished) == [events.JobFinished(143, "stopped by SIGTERM", "alice")]


def test_who_asked_is_told_with_the_migration_and_not_of_the_loss_that_it_turns_into(job: FakeJob) -> None:
    job.core.user_requests.migrate(msg.MigrateRequest(1, "a new fan", "alice"), job.now_s)
    job.tick()
    job.die("n0.w0")
    job.settle()
    assert [(s.kind, s.by) for s in job.told(events.MigrationStarted)] == [("planned", "alice"), ("unplanned", "")]
