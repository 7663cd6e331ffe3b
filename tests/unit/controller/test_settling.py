"""How soon the core looks again, and what it tells of all ranks' progress."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.fake_job import FakeJob

from torchrelay.controller.settling import ALERT_TICK_S, CALM_TICK_S, SILENCE_TICK_S
from torchrelay.protocol import events
from torchrelay.protocol import messages as msg


@pytest.fixture
def job(tmp_path: Path) -> FakeJob:
    job = FakeJob(tmp_path)
    job.train()
    return job


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


@pytest.mark.parametrize(("phase", "often_s"), [("set-up", CALM_TICK_S), ("body", ALERT_TICK_S)])
def test_who_stands_still_in_set_up_asks_for_no_closer_look_at_the_clock(
    job: FakeJob, phase: str, often_s: float
) -> None:
    seen = msg.WorkerProgress("n0.w1", -1, 0, phase, False, 0, "S", 60.0, 60.0)
    job.core.receive("n0", msg.Progress((seen,)), job.now_s)
    job.core.tick(job.now_s)
    assert job.core.tick_every_s(job.now_s) == often_s


def test_for_a_node_that_is_silent_while_ranks_move_the_clock_is_looked_at_four_times_a_second(job: FakeJob) -> None:
    job.core.detach("n0", job.now_s)
    job.core.tick(job.now_s)
    assert job.core.tick_every_s(job.now_s) == SILENCE_TICK_S
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
    assert job.told(events.ProgressMade)[-1].steps == 98
    for rank in range(3):
        job.die(f"n0.w{rank}", signal=0)
    assert job.stop is not None
    assert job.told(events.ProgressMade)[-1].steps == 99
    assert isinstance(job.events[-1], events.JobFinished)
