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


def test_where_files_differ_nobody_stands_in_for_a_machine_that_is_missing(
    tmp_path: Path, saved: JobCheckpoint
) -> None:
    job = begun_again(tmp_path, saved, imports_differ=True)
    job.tick(WAIT_S + 1.0)
    job.settle()
    assert job.told(events.JobStarted) == []
    assert job.stop is not None
    assert "the files that the script imports are not the same on all machines" in job.stop.reason


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


def from_the_script(folder: Path, **config: Any) -> FakeJob:
    """As `begun_again`, and nothing was saved."""
    given = {"restarts_done": 1, "scripts_begun": 1, "machine_wait_s": WAIT_S, **config}
    job = FakeJob(folder, world_size=4, nnodes=2, config=given, missing=("n1",))
    for worker in ("n1.w0", "n1.w1"):
        job.ranks.pop(worker, None)
    return job


def begins(job: FakeJob) -> dict[str, tuple[str, str, str]]:
    """What each process is told that it is."""
    told = [o.order for o in job.orders if isinstance(o, msg.ToWorker) and isinstance(o.order, msg.Begin)]
    return {o.worker: (o.env["RANK"], o.env["MASTER_ADDR"], o.env["TORCHELASTIC_RESTART_COUNT"]) for o in told}


def test_scripts_begin_once_all_machines_are_there(tmp_path: Path) -> None:
    job = from_the_script(tmp_path)
    job.tick(WAIT_S / 2)
    assert (begins(job), job.told(events.JobStarted)) == ({}, [])
    assert "waits for machine 1, for 50 s more" in job.core.status(job.now_s).spread_reason
    job.ranks |= {"n1.w0": 2, "n1.w1": 3}
    job.infos = [msg.WorkerInfo(f"n1.w{i}", 2 + i, 300 + i) for i in range(2)]
    job.attach("n1")
    job.tick(1.0)
    assert list(begins(job)) == ["n0.w0", "n0.w1", "n1.w0", "n1.w1"]
    assert len(job.told(events.JobStarted)) == 1
    assert "waits for" not in job.core.status(job.now_s).spread_reason


def test_after_the_wait_the_script_begins_on_the_machine_that_is_there_with_all_ranks(tmp_path: Path) -> None:
    job = from_the_script(tmp_path)
    job.tick(WAIT_S + 1.0)
    job.settle()
    job.tick(1.0)
    told = begins(job)
    assert {worker: rank for worker, (rank, _, _) in told.items()} == {
        "n0.w0": "0",
        "n0.w1": "1",
        "n0.s0": "2",
        "n0.r0": "3",
    }
    assert {(master, count) for _, master, count in told.values()} == {("127.0.0.1", "1")}
    assert len(job.told(events.JobStarted)) == 1


def test_without_the_first_machine_ranks_meet_on_the_one_that_has_rank_0(tmp_path: Path) -> None:
    config = {"restarts_done": 1, "machine_wait_s": WAIT_S}
    job = FakeJob(tmp_path, world_size=2, spares=0, nnodes=2, config=config, missing=("n0",))
    del job.ranks["n0.w0"]
    job.tick(WAIT_S + 1.0)
    job.settle()
    job.tick(1.0)
    host = job.core.job.nodes["n1"].host
    assert {worker: master for worker, (_, master, _) in begins(job).items()} == {"n1.w0": host, "n1.r0": host}


def test_a_process_that_cannot_be_started_ends_the_wait_with_its_reason(tmp_path: Path) -> None:
    job = from_the_script(tmp_path)
    job.unstartable = {3}
    job.tick(WAIT_S + 1.0)
    job.settle()
    job.tick(1.0)
    assert job.stop is not None
    assert job.stop.exit_code == 75
    assert job.stop.reason.startswith("the script cannot be started again: no process is started for rank 3")


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
