"""What is the program's own fault, and no device's: memory that it outgrew, the same hang or crash twice."""

from __future__ import annotations

import dataclasses
import signal
from pathlib import Path

from support.fake_job import FakeJob
from support.health_jobs import POLICY, job_with, moved, see

from torchrelay.protocol import messages as msg
from torchrelay.protocol.events import (
    MigrationStarted,
)
from torchrelay.protocol.health import kinds as k
from torchrelay.protocol.health.policy import HealthPolicy


def test_memory_that_the_program_outgrew_ends_the_job_with_the_reason(tmp_path: Path) -> None:
    job = job_with(tmp_path)
    see(job, k.OOM_PROGRAM, worker="n0.w1")
    job.die("n0.w1")
    assert job.stop is not None
    assert "the program's own fault" in job.stop.reason
    assert job.told(MigrationStarted) == []


def test_memory_that_the_machine_ran_out_of_replaces(tmp_path: Path) -> None:
    job = job_with(tmp_path)
    see(job, k.OOM_NODE, worker="n0.w1")
    job.die("n0.w1")
    assert moved(job) == [("unplanned", 1)]


def test_memory_that_ran_out_for_the_same_rank_twice_is_the_programs_own_growth(tmp_path: Path) -> None:
    job = job_with(tmp_path, spares=2)
    for victim in ("n0.w1", "n0.s0"):
        assert job.stop is None
        see(job, k.OOM_NODE, worker=victim)
        job.die(victim)
        moved(job)
    assert job.stop is not None
    assert "twice" in job.stop.reason
    assert len(job.told(MigrationStarted)) == 1


def test_memory_that_ran_out_for_two_ranks_replaces_both(tmp_path: Path) -> None:
    job = job_with(tmp_path, spares=2)
    for victim in ("n0.w1", "n0.w2"):
        see(job, k.OOM_NODE, worker=victim)
        job.die(victim)
        moved(job)
    assert moved(job) == [("unplanned", 1), ("unplanned", 2)]


def hang(job: FakeJob, worker: str) -> None:
    """Its peers wait for it, and it does nothing."""
    others = {w for w in job.ranks if w not in job.dead} - {worker}
    job.waiting, job.still, job.asleep = others, others | {worker}, {worker}
    for _ in range(40):
        job.tick(0.5)
        if job.told(MigrationStarted) or job.stop is not None:
            break
    job.waiting, job.still, job.asleep = set(), set(), set()
    job.settle()


def test_a_hang_at_the_same_step_twice_is_the_programs(tmp_path: Path) -> None:
    job = job_with(tmp_path, spares=2)
    hang(job, "n0.w1")
    assert moved(job) == [("unplanned", 1)]
    job.events.clear()
    hang(job, "n0.s0")
    job.tick(2.0)
    assert job.stop is not None
    assert "hang in step 6" in job.stop.reason


def test_a_hang_at_another_step_is_replaced_again(tmp_path: Path) -> None:
    job = job_with(tmp_path, spares=2)
    hang(job, "n0.w1")
    assert moved(job) == [("unplanned", 1)]
    job.events.clear()
    job.boundary += 3
    job.tick(1.0)
    hang(job, "n0.s0")
    assert moved(job) == [("unplanned", 1)]


def test_the_same_crash_at_the_same_step_twice_ends_the_job(tmp_path: Path) -> None:
    job = job_with(tmp_path, spares=2)
    job.die("n0.w1", signal=signal.SIGSEGV)
    assert moved(job) == [("unplanned", 1)]
    job.die("n0.s0", signal=signal.SIGSEGV)
    assert job.stop is not None
    assert job.stop.exit_code == 128 + signal.SIGSEGV
    assert "SIGSEGV in step 6" in job.stop.reason


def test_the_same_crash_at_another_step_and_kills_from_outside_do_not(tmp_path: Path) -> None:
    job = job_with(tmp_path, spares=2)
    job.die("n0.w1", signal=signal.SIGSEGV)
    assert moved(job) == [("unplanned", 1)]
    job.boundary += 1
    job.progress()
    job.die("n0.s0", signal=signal.SIGSEGV)
    assert moved(job) == [("unplanned", 1), ("unplanned", 1)]
    other = job_with(tmp_path, spares=2)
    for victim in ("n0.w1", "n0.s0"):
        other.die(victim, signal=signal.SIGKILL)
        moved(other)
    assert moved(other) == [("unplanned", 1), ("unplanned", 1)]


def test_a_script_that_fails_on_a_blamed_device_is_not_the_programs_fault(tmp_path: Path) -> None:
    rules = tuple(dataclasses.replace(r, observe=True) for r in POLICY.rules)
    job = job_with(tmp_path, policy=HealthPolicy(rules))
    see(job, k.XID, "GPU-1", code=48)
    job.say("n0.w1", msg.ScriptFailed("RuntimeError", "CUDA error", 1, 5))
    job.die("n0.w1", signal=0, exit_code=1)
    assert moved(job) == [("unplanned", 1)]
    assert "CUDA error" in job.told(MigrationStarted)[0].reason
    assert "XID 48" in job.told(MigrationStarted)[0].reason


def test_a_script_that_fails_without_that_ends_the_job(tmp_path: Path) -> None:
    job = job_with(tmp_path)
    see(job, k.XID, "GPU-0", code=8)
    job.say("n0.w1", msg.ScriptFailed("RuntimeError", "CUDA error", 1, 5))
    job.die("n0.w1", signal=0, exit_code=1)
    assert job.stop is not None
    assert job.told(MigrationStarted) == []
