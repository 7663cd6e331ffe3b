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


def test_a_process_that_asks_to_be_moved_is_moved_when_its_time_comes(tmp_path: Path) -> None:
    job = FakeJob(tmp_path, spares=2)
    job.train()
    job.say("n0.w1", msg.MigrationWanted("fault planned"))
    job.say("n0.w2", msg.MigrationWanted("fault planned"))
    job.settle()
    job.tick()
    job.settle()
    assert [(f.rank, f.outcome) for f in job.told(events.MigrationFinished)] == [(1, "committed"), (2, "committed")]


def test_a_wish_that_can_never_be_met_is_told(tmp_path: Path) -> None:
    job = FakeJob(tmp_path, spares=0)
    job.train()
    job.say("n0.w1", msg.MigrationWanted("fault planned"))
    (off,) = job.told(events.MoveNotMade)
    assert (off.migration, off.rank, off.asked) == ("", 1, "fault planned")
    assert off.reason.startswith("there is no spare to move it to")


def with_a_cold_spare(tmp_path: Path) -> FakeJob:
    job = FakeJob(tmp_path)
    job.warm = lambda: None  # type: ignore[method-assign]  # in its place for this test
    job.train()
    return job


def test_a_wish_that_the_end_of_the_script_overtakes_is_told_with_what_it_waited_for(tmp_path: Path) -> None:
    job = with_a_cold_spare(tmp_path)
    job.say("n0.w1", msg.MigrationWanted("fault planned"))
    job.say("n0.w1", msg.Finishing(5))
    job.tick()
    (off,) = job.told(events.MoveNotMade)
    assert off.reason == (
        "rank 1 has reached the end of its script; the move could not begin before: the spare is still starting"
    )


def test_a_wish_that_the_end_of_the_job_overtakes_is_told_before_the_last_event(tmp_path: Path) -> None:
    job = with_a_cold_spare(tmp_path)
    job.say("n0.w1", msg.MigrationWanted("fault planned"))
    for worker in list(job.ranks):
        job.say(worker, msg.Finishing(5))
        job.die(worker, signal=0)
    (off,) = job.told(events.MoveNotMade)
    assert isinstance(job.events[-1], events.JobFinished)
    assert off.reason.startswith("the job was over: all ranks are done; the move could not begin before: the spare is")


def test_two_wishes_for_one_rank_are_two(tmp_path: Path) -> None:
    job = with_a_cold_spare(tmp_path)
    job.say("n0.w1", msg.MigrationWanted("one"))
    job.say("n0.w1", msg.MigrationWanted("another"))
    job.core.user_requests.stop(15)
    job.tick()
    assert [off.asked for off in job.told(events.MoveNotMade)] == ["one", "another"]


def test_a_move_that_is_given_up_is_told_after_its_end(job: FakeJob) -> None:
    job.mute.add("n0.s0")
    job.core.user_requests.migrate(msg.MigrateRequest(1, "a new fan"), job.now_s)
    job.tick()
    job.say("n0.w2", msg.Finishing(5))
    finished, off = [e for e in job.events if isinstance(e, (events.MigrationFinished, events.MoveNotMade))]
    reason = "rank 2 reached the end of its script before the spare was ready: there is nothing left to move"
    assert (finished.outcome, finished.reason) == ("abandoned", reason)
    assert off == events.MoveNotMade("m1", 1, "a new fan", reason)


def test_a_move_in_the_middle_of_which_the_job_ends_is_told(job: FakeJob) -> None:
    job.mute.add("n0.s0")
    job.core.user_requests.migrate(msg.MigrateRequest(1, "a new fan"), job.now_s)
    job.tick()
    job.core.user_requests.stop(15)
    job.tick()
    (off,) = job.told(events.MoveNotMade)
    assert (off.migration, off.reason) == ("m1", "the job was over before it was done: stopped by SIGTERM")


def test_the_end_of_the_job_says_who_asked_for_it(job: FakeJob) -> None:
    job.core.user_requests.stop(15, "alice")
    job.tick()
    assert job.told(events.JobFinished) == [events.JobFinished(143, "stopped by SIGTERM", "alice")]


def test_a_move_that_gave_way_to_another_ranks_loss_is_told(tmp_path: Path) -> None:
    job = FakeJob(tmp_path, spares=2)
    job.train()
    job.core.user_requests.migrate(msg.MigrateRequest(1, "a new fan"), job.now_s)
    job.tick()
    job.die("n0.w2")
    job.settle()
    (finished,) = job.told(events.MigrationFinished)
    assert (finished.outcome, finished.ranks) == ("committed", (2,))
    (off,) = job.told(events.MoveNotMade)
    assert (off.migration, off.rank, off.asked) == ("m1", 1, "a new fan")
    assert off.reason.startswith("given up for this: rank 2 (n0.w2) was killed by SIGKILL")


def test_a_move_that_took_place_is_not_told_as_one_that_did_not(job: FakeJob) -> None:
    job.core.user_requests.migrate(msg.MigrateRequest(1, "a new fan"), job.now_s)
    job.tick()
    job.settle()
    job.core.user_requests.stop(15)
    job.tick()
    assert [f.outcome for f in job.told(events.MigrationFinished)] == ["committed"]
    assert job.told(events.MoveNotMade) == []


def test_a_wish_ends_with_the_process_that_was_to_be_left(tmp_path: Path) -> None:
    job = FakeJob(tmp_path, spares=3)
    job.train()
    assert job.core.user_requests.migrate(msg.MigrateRequest(0, "a fan"), job.now_s).accepted
    job.say("n0.w1", msg.MigrationWanted("its node is tired"))
    job.die("n0.w1")
    job.settle()
    job.tick(1.0)
    job.settle()
    assert ("planned", 1) not in [(s.kind, s.rank) for s in job.told(events.MigrationStarted)]
    assert next((f.kind, f.ranks) for f in job.told(events.MigrationFinished) if f.outcome == "committed") == (
        "unplanned",
        (1,),
    )
    assert "n0.w1, which was to be left, has lost it" in job.told(events.MoveNotMade)[-1].reason


def test_who_asked_is_told_with_the_migration_and_not_of_the_loss_that_it_turns_into(job: FakeJob) -> None:
    job.core.user_requests.migrate(msg.MigrateRequest(1, "a new fan", "alice"), job.now_s)
    job.tick()
    job.die("n0.w0")
    job.settle()
    assert [(s.kind, s.by) for s in job.told(events.MigrationStarted)] == [("planned", "alice"), ("unplanned", "")]
