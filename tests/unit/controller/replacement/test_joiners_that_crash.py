"""New processes that crash on their way into a rank."""

from __future__ import annotations

import signal
from pathlib import Path

from support.fake_job import FakeJob

from torchrelay.protocol import events


def lose_joiners(job: FakeJob, by: signal.Signals) -> None:
    """Lose rank 1, and each spare while it is to take over."""
    spares = ["n0.s0", "n0.s1", "n0.s2"]
    job.mute.update(spares)
    job.die("n0.w1")
    job.settle()
    for spare in spares:
        if job.core.job.workers[spare].rank == 1:
            job.die(spare, by)
            job.settle()


def test_two_that_crash_alike_are_no_accident_and_no_further_spare_is_spent(tmp_path: Path) -> None:
    job = FakeJob(tmp_path, world_size=2, spares=3)
    job.train()
    lose_joiners(job, signal.SIGSEGV)
    assert "n0.s2" not in job.dead
    (fell,) = job.told(events.JobFell)
    assert "n0.s0, n0.s1 could not become rank 1, all for the same reason: it was killed by SIGSEGV" in fell.reason


def test_those_that_are_killed_may_be_an_accident_each_and_the_first_one_is_named(tmp_path: Path) -> None:
    job = FakeJob(tmp_path, world_size=2, spares=3)
    job.train()
    lose_joiners(job, signal.SIGKILL)
    assert "n0.s2" in job.dead
    (fell,) = job.told(events.JobFell)
    assert "no spare is left for rank 1" in fell.reason
    assert "the first one, n0.s0, could not do it: it was killed by SIGKILL" in fell.reason


def test_after_two_that_crash_alike_on_one_machine_the_spare_of_another_one_takes_over(tmp_path: Path) -> None:
    job = FakeJob(tmp_path, world_size=2, spares=3, nnodes=2, spares_elsewhere=1)
    job.train()
    spares = ["n0.s0", "n0.s1"]
    job.mute.update(spares)
    job.die("n0.w0")
    job.settle()
    for spare in spares:
        assert job.core.job.workers[spare].rank == 0
        job.die(spare, signal.SIGBUS)
        job.settle()
    assert job.core.job.workers["n1.s0"].rank == 0
    assert not job.told(events.JobFell)
