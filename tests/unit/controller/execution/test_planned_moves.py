"""Moves that somebody wishes: made when their time comes, or told as not made, with the reason."""

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
