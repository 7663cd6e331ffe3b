from __future__ import annotations

from pathlib import Path

import pytest
from support.fake_job import FakeJob

from torchrelay.controller.core import ALERT_TICK_S, CALM_TICK_S
from torchrelay.protocol import events
from torchrelay.protocol import messages as msg


@pytest.fixture
def job(tmp_path: Path) -> FakeJob:
    job = FakeJob(tmp_path)
    job.train()
    return job


def refusal(job: FakeJob, rank: int = 1) -> str:
    reply = job.core.migrate(msg.MigrateRequest(rank, "why not"), job.now_s)
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
    job.warm = lambda: None  # type: ignore[method-assign]
    job.train()
    assert "still starting" in refusal(job)


def test_one_migration_at_a_time(job: FakeJob) -> None:
    assert job.core.migrate(msg.MigrateRequest(1, ""), job.now_s).accepted
    assert refusal(job, 2) == "m1 is under way (rank 1, preparing); ask again when it is over"


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
    job.core.stop(15)
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


def test_a_wish_that_can_never_be_met_is_logged(tmp_path: Path) -> None:
    job = FakeJob(tmp_path, spares=0)
    job.train()
    job.say("n0.w1", msg.MigrationWanted("fault planned"))
    (log,) = job.told(events.Log)
    assert "rank 1 asked to be moved: there is no spare" in log.text


def test_status_shows_ranks_spares_and_the_last_migration(job: FakeJob) -> None:
    status = job.core.status(job.now_s)
    assert [(r.rank, r.worker, r.boundary, r.state) for r in status.ranks] == [
        (r, f"n0.w{r}", 5, "running") for r in range(3)
    ]
    assert (status.spares_warm, status.spares_total, status.protection, status.generation) == (1, 1, "on", 0)
    job.mute.add("n0.s0")
    job.die("n0.w1")
    job.settle()
    assert [r.state for r in job.core.status(job.now_s).ranks] == ["standing", "lost", "standing"]
    assert job.core.status(job.now_s).last_migration.startswith("m1 (unplanned, rank 1): preparing")
    job.mute.clear()
    job.say("n0.s0", msg.Prepared(1, "h", 1))
    job.settle()
    status = job.core.status(job.now_s)
    assert [r.worker for r in status.ranks] == ["n0.w0", "n0.s0", "n0.w2"]
    assert (status.migrations_done, status.generation, status.spares_total) == (1, 1, 0)


def test_progress_is_told_at_most_twice_a_second_and_only_when_something_changed(job: FakeJob) -> None:
    for _ in range(40):
        job.boundary += 1
        job.tick()
    steady = len(job.told(events.ProgressMade))
    assert 3 <= steady <= 5
    job.tick(5.0)
    assert len(job.told(events.ProgressMade)) <= steady + 1
    rates = [p.steps_per_s for p in job.told(events.ProgressMade)]
    assert rates[-1] == pytest.approx(20.0, rel=0.1)


def test_the_clock_is_looked_at_seldom_until_something_waits_for_it(job: FakeJob) -> None:
    assert job.core.tick_every_s(job.now_s) == CALM_TICK_S
    job.states = {"n0.s0": "T"}
    job.progress()
    assert job.core.tick_every_s(job.now_s) == CALM_TICK_S  # a spare keeps nobody waiting
    job.states = {"n0.w1": "T"}
    job.progress()
    assert job.core.tick_every_s(job.now_s) == ALERT_TICK_S


def test_a_wish_that_cannot_be_met_yet_is_tried_again_soon(tmp_path: Path) -> None:
    job = FakeJob(tmp_path)
    job.train()
    job.core.job.workers["n0.s0"].warm = False
    job.say("n0.w1", msg.MigrationWanted("fault planned"))
    assert not job.told(events.MigrationStarted)
    assert job.core.tick_every_s(job.now_s) == ALERT_TICK_S


def test_agents_look_closely_for_as_long_as_a_migration_lasts(job: FakeJob) -> None:
    def looks() -> list[bool]:
        return [o.on for o in job.orders if isinstance(o, msg.LookClosely)]

    job.die("n0.w1")
    assert looks() == [True]
    assert job.core.tick_every_s(job.now_s) == ALERT_TICK_S
    job.settle()
    assert looks() == [True, False]
    assert job.core.tick_every_s(job.now_s) == CALM_TICK_S


def test_the_last_steps_are_told_however_soon_the_job_ends(job: FakeJob) -> None:
    job.tick(1.0)
    job.boundary = 98
    job.progress()
    for rank in range(3):
        job.say(f"n0.w{rank}", msg.Finishing(99))
    assert job.told(events.ProgressMade)[-1].boundary == 98
    for rank in range(3):
        job.die(f"n0.w{rank}", signal=0)
    assert job.stop is not None
    assert job.told(events.ProgressMade)[-1].boundary == 99
    assert isinstance(job.events[-1], events.JobFinished)
