from __future__ import annotations

from pathlib import Path

import pytest
from support.fake_job import FakeJob

from torchrelay.protocol import events
from torchrelay.protocol import messages as msg
from torchrelay.protocol.options.numbers import ALERT, RETRY, STOP


@pytest.fixture
def job(tmp_path: Path) -> FakeJob:
    job = FakeJob(tmp_path)
    job.train()
    return job


def alarm(action: str, boundary: int = 5) -> msg.NumberAlarm:
    return msg.NumberAlarm("loss", boundary, float("inf"), 1.0, action, f"loss of step {boundary + 1} is inf")


def told(job: FakeJob) -> list[tuple[str, tuple[int, ...], str]]:
    return [(v.action, v.ranks, v.outcome) for v in job.told(events.HealthVerdict)]


def test_an_alert_is_told_and_nothing_else(job: FakeJob) -> None:
    job.say("n0.w1", alarm(ALERT))
    job.tick(2.0)
    assert told(job) == [("watch", (1,), "told")]
    assert job.sent(msg.NumbersDecided) == {}
    assert job.stop is None


def test_the_rank_moves_to_another_device_and_the_step_is_done_again(job: FakeJob) -> None:
    job.say("n0.w1", alarm(RETRY))
    assert job.told(events.MigrationStarted) == [], "others may have something to say about the same step"
    job.tick(1.0)
    job.settle()
    (finished,) = job.told(events.MigrationFinished)
    assert (finished.outcome, finished.ranks, finished.steps_redone) == ("committed", (1,), 1)
    assert told(job) == [("replace", (1,), "done")]


def test_a_number_that_is_the_same_on_another_device_goes_on(job: FakeJob) -> None:
    job.say("n0.w1", alarm(RETRY))
    job.tick(1.0)
    job.settle()
    job.say("n0.s0", alarm(RETRY))
    job.tick(1.0)
    assert job.sent(msg.NumbersDecided) == {"n0.s0": msg.NumbersDecided(5)}
    assert told(job)[-1] == ("watch", (1,), "told")


def test_a_number_of_all_ranks_goes_on_without_waiting(job: FakeJob) -> None:
    for worker in ("n0.w0", "n0.w1", "n0.w2"):
        job.say(worker, alarm(RETRY))
    job.tick(0.05)
    assert set(job.sent(msg.NumbersDecided)) == {"n0.w0", "n0.w1", "n0.w2"}


def test_a_job_that_is_to_stop_ends_with_a_code_of_its_own(job: FakeJob) -> None:
    job.say("n0.w2", alarm(STOP))
    job.tick(1.0)
    assert job.stop is not None
    assert (job.stop.exit_code, job.stop.reason) == (77, "rank 2: loss of step 6 is inf; stopped before the update")


def test_what_a_worker_says_that_holds_no_rank_any_more_counts_for_nothing(job: FakeJob) -> None:
    job.die("n0.w1")
    job.settle()
    job.say("n0.w1", alarm(STOP))
    job.tick(2.0)
    assert job.stop is None


def test_replicas_that_differ_are_treated_as_the_watch_says(tmp_path: Path) -> None:
    for action, code in ((ALERT, None), (STOP, 77)):
        job = FakeJob(tmp_path, spares=0, config={"replica_action": action})
        job.train()
        for worker, rank in job.ranks.items():
            job.say(worker, msg.ReplicaCheck(4, {"weight": "bad" if rank == 1 else "bb"}))
        assert (job.stop.exit_code if job.stop else None) == code
        (verdict,) = job.told(events.HealthVerdict)
        assert (verdict.rule, verdict.ranks) == ("replicas", (1,))
