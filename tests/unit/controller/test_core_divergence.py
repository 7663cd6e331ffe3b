"""Ranks that held the same before a migration and do not after it: all save what they hold, and the job ends."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.fake_job import FakeJob

from torchrelay.protocol import events
from torchrelay.protocol import messages as msg
from torchrelay.protocol.names import EXIT_SUSPECT_NUMBER


def check(boundary: int, digest: str) -> msg.ReplicaCheck:
    return msg.ReplicaCheck(boundary, {"weight": digest}, ("weight",))


@pytest.fixture
def job(tmp_path: Path) -> FakeJob:
    job = FakeJob(tmp_path, spares=2)
    job.train()
    return job


def assert_all_have_saved_and_the_job_ended(job: FakeJob) -> None:
    saves = job.sent(msg.SaveCheckpoint)
    assert {worker: order.save_tensors for worker, order in saves.items()} == dict.fromkeys(saves, True)
    assert set(saves) == set(job.core.job.holders.values())
    (finished,) = job.told(events.JobFinished)
    assert finished.exit_code == EXIT_SUSPECT_NUMBER
    assert "differ in weight" in finished.reason
    (verdict,) = job.told(events.HealthVerdict)
    assert (verdict.action, verdict.subject, verdict.ranks) == ("stop", "weight", (0, 1, 2))


def test_a_difference_in_the_steps_after_a_migration_stops_the_job(job: FakeJob) -> None:
    job.die("n0.w1")
    job.settle()
    for worker, digest in (("n0.w0", "bb"), ("n0.s0", "cc"), ("n0.w2", "dd")):
        job.say(worker, check(job.boundary + 1, digest))
    job.settle()
    assert_all_have_saved_and_the_job_ended(job)


def test_ranks_that_stay_alike_go_on(job: FakeJob) -> None:
    job.die("n0.w1")
    job.settle()
    for boundary in (1, 2, 4):
        for worker in ("n0.w0", "n0.s0", "n0.w2"):
            job.say(worker, check(job.boundary + boundary, f"b{boundary}"))
    job.settle()
    assert job.told(events.JobFinished) == []
    assert job.sent(msg.SaveCheckpoint) == {}


def test_paths_that_mean_other_tensors_since_the_migration_tell_nothing(job: FakeJob) -> None:
    job.die("n0.w1")
    job.settle()
    boundary = job.boundary + 2
    for worker, digest in (("n0.w0", "bb"), ("n0.s0", "cc"), ("n0.w2", "dd")):
        job.say(worker, msg.ReplicaCheck(boundary, {"weight": digest}, ("weight",), boundary))
    job.settle()
    assert job.told(events.JobFinished) == []


def test_a_loop_that_one_rank_alone_has_been_in_ends_no_comparison(job: FakeJob) -> None:
    job.die("n0.w1")
    job.settle()
    boundary = job.boundary + 2
    job.say("n0.w0", msg.ReplicaCheck(boundary, {"weight": "averaged"}, ("weight",), boundary))
    for worker in ("n0.w0", "n0.s0", "n0.w2"):
        job.say(worker, check(boundary, "bb"))
    job.settle()
    assert job.told(events.JobFinished) == []
    for worker, digest in (("n0.w0", "cc"), ("n0.s0", "dd"), ("n0.w2", "ee")):
        job.say(worker, check(boundary + 2, digest))
    job.settle()
    assert_all_have_saved_and_the_job_ended(job)


def test_what_is_said_anew_of_a_boundary_takes_the_place_of_what_was_said(job: FakeJob) -> None:
    """A loop that has only stood in there leaves no trace in what a donor is chosen by."""
    job.say("n0.w0", msg.ReplicaCheck(7, {"weight": "averaged"}, ("weight",), 7))
    job.say("n0.w0", check(7, "bb"))
    assert [(c.boundary, c.since, c.digests) for c in job.core.job.checks[0]] == [
        (3, 0, {"weight": "aa"}),
        (7, 0, {"weight": "bb"}),
    ]


def test_without_a_migration_nothing_is_stopped(job: FakeJob) -> None:
    for worker, digest in (("n0.w0", "bb"), ("n0.w1", "cc"), ("n0.w2", "dd")):
        job.say(worker, check(6, digest))
    job.settle()
    assert job.told(events.JobFinished) == []


class DifferBeforeTheCommit(FakeJob):
    def _reports(self, worker: str, order: msg.ShimOrder) -> list[msg.ShimReport]:
        if isinstance(order, msg.Rebuild) and worker not in self.joining:
            held = check(order.target, worker)
            return [msg.Rebuilt(order.generation, 0.1), held, msg.Verified(order.generation)]
        return super()._reports(worker, order)


def test_survivors_that_differ_are_not_let_go_on(tmp_path: Path) -> None:
    job = DifferBeforeTheCommit(tmp_path, spares=2)
    job.train()
    job.die("n0.w1")
    job.settle()
    assert job.sent(msg.Commit) == {}
    (finished,) = job.told(events.JobFinished)
    assert finished.exit_code == EXIT_SUSPECT_NUMBER
    assert set(job.sent(msg.SaveCheckpoint)) == {"n0.w0", "n0.w2"}
    assert all(order.save_tensors for order in job.sent(msg.SaveCheckpoint).values())


def test_ranks_that_have_gone_back_from_where_they_were_apart_may_be_apart_there_again(tmp_path: Path) -> None:
    job = FakeJob(tmp_path, 2, spares=1, config={"buddy_every": 3})
    job.train()
    for worker, rank in job.ranks.items():
        job.say(worker, check(1, "bb"))
        job.say(worker, check(4, f"of {rank}"))
    job.kept["n0"] = tuple(msg.KeptCopy(rank, 3, f"/shm/{rank}", b"copy", b"set-up", "layout") for rank in range(2))
    job.die("n0.w1")
    job.settle()
    (finished,) = job.told(events.MigrationFinished)
    assert (finished.kind, finished.outcome) == ("rollback", "committed")
    for rank, worker in job.core.job.holders.items():
        job.say(worker, check(4, f"of {rank}"))
    job.settle()
    assert job.told(events.JobFinished) == []
    assert job.told(events.HealthVerdict) == []
