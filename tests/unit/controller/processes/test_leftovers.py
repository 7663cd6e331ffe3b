"""Journals of processes that have been replaced are given back, and no sooner."""

from __future__ import annotations

from pathlib import Path

from support.fake_job import FakeJob

from torchrelay.protocol import messages as msg


def forgotten(job: FakeJob) -> list[tuple[str, str]]:
    return [(node, o.worker) for node, o in job.sent_to if isinstance(o, msg.ForgetJournals)]


def test_once_another_one_has_the_rank_all_agents_forget_the_journals_of_who_had_it(tmp_path: Path) -> None:
    job = FakeJob(tmp_path, 2, 2, nnodes=2)
    job.train()
    job.die("n1.w0")
    while job.core.driver.migration is not None:
        assert forgotten(job) == [], "the migration may ask for them"
        job.give(job.due.popleft()[1])
    assert forgotten(job) == [("n0", "n1.w0"), ("n1", "n1.w0")]
    job.settle()
    job.tick(5.0)
    assert len(forgotten(job)) == 2


def test_a_lost_rank_that_nobody_has_replaced_yet_is_not_forgotten(tmp_path: Path) -> None:
    """In its first step it is not known at once whether it can be."""
    job = FakeJob(tmp_path, 2, 1, nnodes=2)
    job.warm()
    for worker, rank in job.ranks.items():
        job.say(worker, msg.Armed(rank, 2, "gloo", "2.13"))
    job.die("n1.w0")
    assert (job.core.driver.migration, job.core.job.protection, job.core.ended) == (None, "on", None)
    assert job.core.job.holders[1] == "n1.w0"
    assert forgotten(job) == []


def test_nor_is_a_spare_that_never_had_a_rank(tmp_path: Path) -> None:
    job = FakeJob(tmp_path, 2, 1, nnodes=2)
    job.train()
    job.die("n0.s0")
    job.settle()
    job.tick(1.0)
    assert forgotten(job) == []
