"""A rank that is slower than the others, and its cause."""

from __future__ import annotations

import dataclasses
from pathlib import Path

from support.fake_job import FakeJob
from support.health_jobs import POLICY, job_with, moved, see

from torchrelay.protocol.events import (
    HealthVerdict,
    MigrationStarted,
)
from torchrelay.protocol.health import kinds as k
from torchrelay.protocol.health.policy import Limits


def test_a_straggler_is_moved_with_the_cause_that_was_found(tmp_path: Path) -> None:
    job = job_with(tmp_path)
    see(job, k.HW_SLOWDOWN, "GPU-2")
    for _ in range(900):
        job.boundary += 1
        for worker in ("n0.w0", "n0.w1"):
            job.waited_s[worker] = job.waited_s.get(worker, 0.0) + 0.04
        job.tick(0.05)
        if job.told(MigrationStarted):
            break
    (verdict,) = [v for v in job.told(HealthVerdict) if v.rule == "straggler"]
    assert (verdict.action, verdict.ranks) == (k.MIGRATE, (2,))
    assert "on its device: gpu-hw-slowdown" in verdict.reason
    assert moved(job)[:1] == [("planned", 2)]


def slow_rank_2(job: FakeJob) -> HealthVerdict:
    for _ in range(900):
        job.boundary += 1
        for worker in ("n0.w0", "n0.w1"):
            job.waited_s[worker] = job.waited_s.get(worker, 0.0) + 0.04
        job.tick(0.05)
        if job.told(MigrationStarted):
            break
    (verdict,) = [v for v in job.told(HealthVerdict) if v.rule.startswith("straggler")]
    found: HealthVerdict = verdict
    return found


def test_a_straggler_whose_host_is_short_of_processors_is_moved_and_its_device_is_not_blamed(tmp_path: Path) -> None:
    job = job_with(tmp_path)
    see(job, k.HOST_CPU, value=0.6, detail="the control group was throttled for 60 % of the time")
    verdict = slow_rank_2(job)
    assert (verdict.rule, verdict.action, verdict.ranks) == ("straggler-host", k.MIGRATE, (2,))
    assert "control group was throttled" in verdict.reason
    assert moved(job)[:1] == [("planned", 2)]
    assert job.core.status(job.now_s).quarantine == ()


def test_a_cause_that_is_over_is_not_named(tmp_path: Path) -> None:
    job = job_with(tmp_path)
    see(job, k.HOST_CPU, value=0.6)
    see(job, k.HOST_CPU, value=0.0)
    for margin in (4.0, 20.0):
        see(job, k.TEMPERATURE_MARGIN, "GPU-2", value=margin)
    verdict = slow_rank_2(job)
    assert verdict.rule == "straggler"
    assert "show no cause" in verdict.reason


def test_evidence_that_comes_twice_for_one_fault_counts_as_one_migration(tmp_path: Path) -> None:
    job = job_with(tmp_path, spares=2, policy=dataclasses.replace(POLICY, limits=Limits(storm_migrations=2)))
    see(job, k.XID, "GPU-0", code=48)
    see(job, k.ECC_UNCORRECTED, "GPU-0")
    assert moved(job) == [("unplanned", 0)]
    see(job, k.XID, "GPU-1", code=79)
    assert moved(job) == [("unplanned", 0), ("unplanned", 1)]


def test_ranks_of_equal_pace_are_no_stragglers(tmp_path: Path) -> None:
    job = job_with(tmp_path)
    for _ in range(900):
        job.boundary += 1
        job.tick(0.05)
    assert job.told(HealthVerdict) == []
