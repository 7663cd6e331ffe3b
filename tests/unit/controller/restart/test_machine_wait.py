"""A job of two machines is started anew from a checkpoint, and one of them does not come back."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from support.fake_job import FakeJob

from torchrelay.controller.checkpoints.checkpoint import JobCheckpoint, read_checkpoint
from torchrelay.protocol import events
from torchrelay.protocol import messages as msg

WAIT_S = 100.0


@pytest.fixture
def saved(tmp_path: Path) -> JobCheckpoint:
    job = FakeJob(tmp_path, world_size=4)
    job.core.driver.spares.respawns.is_possible = lambda: False
    job.train()
    job.die("n0.s0")
    job.die("n0.w1")
    job.settle()
    (saved,) = job.told(events.CheckpointSaved)
    return read_checkpoint(Path(saved.directory), 4)


def begun_again(folder: Path, saved: JobCheckpoint, **config: Any) -> FakeJob:
    """n0 is there, with two processes and one spare; n1 is missing."""
    given = {"restarts_done": 1, "machine_wait_s": WAIT_S, **config}
    job = FakeJob(folder, world_size=4, nnodes=2, checkpoint=saved, config=given, missing=("n1",))
    job.states = dict.fromkeys(job.spares, "S")  # its agent tells of them
    job.warm()
    return job


def warnings(job: FakeJob) -> list[str]:
    return [log.text for log in job.told(events.Log) if log.level == "warning"]


def test_after_the_wait_its_ranks_enter_on_the_machine_that_is_there(tmp_path: Path, saved: JobCheckpoint) -> None:
    job = begun_again(tmp_path, saved)
    job.tick(WAIT_S - 1.0)
    assert job.told(events.JobStarted) == []
    assert [text for text in warnings(job) if "waits for machine 1, for up to 100 s" in text]
    job.tick(2.0)
    job.settle()
    (finished,) = job.told(events.MigrationFinished)
    assert (finished.kind, finished.outcome) == ("resume", "committed")
    assert sorted(job.core.job.holders.values()) == ["n0.r0", "n0.s0", "n0.w0", "n0.w1"]
    assert [o.in_place_of for o in job.orders if isinstance(o, msg.StartWorker)] == [""]


def test_a_machine_that_comes_back_in_time_has_its_ranks(tmp_path: Path, saved: JobCheckpoint) -> None:
    job = begun_again(tmp_path, saved)
    job.tick(WAIT_S / 2)
    job.infos = [msg.WorkerInfo(f"n1.w{i}", -1, 300 + i) for i in range(2)]
    job.spares += ["n1.w0", "n1.w1"]
    job.attach("n1")
    job.warm()
    job.settle()
    assert {w.partition(".")[0] for w in job.core.job.holders.values()} == {"n0", "n1"}
    assert [o for o in job.orders if isinstance(o, msg.StartWorker)] == []


def test_where_gpus_bound_the_places_the_job_ends_with_the_reason(tmp_path: Path, saved: JobCheckpoint) -> None:
    job = begun_again(tmp_path, saved)
    devices = {w: f"nvidia-driver GPU-{w}" for w in job.spares}
    job.give(msg.HealthSources({"nvidia": "ok"}, devices), "n0")
    job.tick(WAIT_S + 1.0)
    assert job.stop is not None
    assert job.stop.exit_code == 75
    assert "machine 1 did not come back within 100 s (--machine-wait)" in job.stop.reason
    assert "have places for 0 of 1 further ranks" in job.stop.reason


def test_nobody_goes_on_without_a_machine_that_may_still_train(tmp_path: Path, saved: JobCheckpoint) -> None:
    job = begun_again(tmp_path, saved, machine_wait_s=1.0, lease_s=60.0)
    job.tick(69.0)
    assert job.told(events.JobStarted) == []
    job.tick(2.0)
    assert len(job.told(events.JobStarted)) == 1


def test_the_first_time_all_machines_are_waited_for_without_end(tmp_path: Path, saved: JobCheckpoint) -> None:
    job = begun_again(tmp_path, saved, restarts_done=0)
    job.tick(10 * WAIT_S)
    assert (job.stop, job.told(events.JobStarted)) == (None, [])
