"""A process that died needs no spare where its place is well: a new one is started there, and joins."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from support.fake_job import FakeJob

from torchrelay.controller.decide.replacement.respawn import HOUR_S
from torchrelay.protocol import events
from torchrelay.protocol import messages as msg


def made(folder: Path, limit: int = 3, spares: int = 0, **more: Any) -> FakeJob:
    job = FakeJob(folder, spares=spares, config={"respawn_limit": limit}, **more)
    job.train()
    return job


def starts(job: FakeJob) -> list[int]:
    return [o.rank for o in job.orders if isinstance(o, msg.StartWorker)]


def lose(job: FakeJob, worker: str, boundary: int) -> None:
    job.boundary = boundary
    job.progress()
    job.die(worker)
    job.settle()


def test_a_lost_rank_moves_to_a_process_that_is_started_in_its_place(tmp_path: Path) -> None:
    job = made(tmp_path)
    job.die("n0.w1")
    job.settle()
    (finished,) = job.told(events.MigrationFinished)
    assert (finished.outcome, finished.kind, finished.spare) == ("committed", "unplanned", "n0.r0")
    assert job.core.job.holders == {0: "n0.w0", 1: "n0.r0", 2: "n0.w2"}
    assert starts(job) == [1]


def test_a_spare_goes_first(tmp_path: Path) -> None:
    job = made(tmp_path, spares=1)
    job.die("n0.w1")
    job.settle()
    assert (job.core.job.holders[1], starts(job)) == ("n0.s0", [])


def test_two_ranks_that_die_together_are_both_started_again(tmp_path: Path) -> None:
    job = made(tmp_path)
    job.die("n0.w1")
    job.die("n0.w2")
    job.settle()
    assert sorted(starts(job)) == [1, 2]
    assert sorted(job.core.job.holders.values()) == ["n0.r0", "n0.r1", "n0.w0"]


def test_what_is_lost_at_the_same_step_a_third_time_is_not_started_again(tmp_path: Path) -> None:
    job = made(tmp_path, limit=9)
    for worker in ("n0.w1", "n0.r0", "n0.r1"):
        lose(job, worker, 7)
    assert starts(job) == [1, 1]
    (fell,) = job.told(events.JobFell)
    assert fell.losses_at_step == 3
    story = "n0.w1 was killed by SIGKILL; n0.r0 was killed by SIGKILL; n0.r1 was killed by SIGKILL"
    assert f"rank 1 was lost at step 7 3 times ({story})" in fell.reason
    assert fell.directory


def test_no_spare_is_spent_on_it_either(tmp_path: Path) -> None:
    job = made(tmp_path, limit=9, spares=4)
    for worker in ("n0.w1", "n0.s0", "n0.s1"):
        lose(job, worker, 7)
    assert len(job.core.job.spares) == 2
    assert "rank 1 was lost at step 7 3 times" in job.told(events.JobFell)[0].reason
    assert starts(job) == []


def test_losses_at_other_steps_are_no_pattern(tmp_path: Path) -> None:
    job = made(tmp_path, limit=9, spares=4)
    for step, worker in ((7, "n0.w1"), (7, "n0.s0"), (8, "n0.s1")):
        lose(job, worker, step)
    assert job.told(events.JobFell) == []


def test_what_is_started_is_told_with_its_number_and_the_limit(tmp_path: Path) -> None:
    job = made(tmp_path, limit=2)
    lose(job, "n0.w1", 7)
    lose(job, "n0.r0", 8)
    told = [(e.rank, e.node, e.boundary, e.count, e.limit) for e in job.told(events.ProcessRespawned)]
    assert told == [(1, "n0", 7, 1, 2), (1, "n0", 8, 2, 2)]
    assert [o.in_place_of for o in job.orders if isinstance(o, msg.StartWorker)] == ["n0.w1", "n0.r0"]


def started_on(job: FakeJob) -> list[tuple[str, int, str]]:
    """Machine, rank and the process whose place it is."""
    return [(node, o.rank, o.in_place_of) for node, o in job.sent_to if isinstance(o, msg.StartWorker)]


def of_two_machines(folder: Path, gpus: bool = False, **more: Any) -> FakeJob:
    """Both have two ranks, and copies of each other's journals."""
    job = made(folder, world_size=4, nnodes=2, **more)
    if gpus:
        for node in ("n0", "n1"):
            devices = {w: f"nvidia-driver GPU-{w}" for w in (*job.ranks, *job.spares) if w.startswith(node)}
            job.give(msg.HealthSources({"nvidia": "ok"}, devices), node)
    job.tick(1.0)
    for worker in job.ranks:
        job.say(worker, msg.JournalsCopied(job.sent(msg.CopyJournals)[worker].node, 5))
    return job


def lose_machine(job: FakeJob, node: str) -> None:
    job.silent.add(node)
    for worker in job.ranks:
        if not worker.startswith(node):
            job.waiting.add(worker)
            job.still.add(worker)
    job.tick(10.0)
    job.settle()


def test_the_ranks_of_a_lost_machine_go_on_in_processes_that_are_started_on_the_other_one(tmp_path: Path) -> None:
    job = of_two_machines(tmp_path)
    lose_machine(job, "n1")
    assert started_on(job) == [("n0", 2, ""), ("n0", 3, "")]
    assert job.core.job.holders == {0: "n0.w0", 1: "n0.w1", 2: "n0.r0", 3: "n0.r1"}
    assert [(e.rank, e.node) for e in job.told(events.ProcessRespawned)] == [(2, "n0"), (3, "n0")]
    assert job.told(events.JobFell) == []


def test_a_spare_takes_one_rank_of_a_lost_machine_and_a_new_process_the_other(tmp_path: Path) -> None:
    job = of_two_machines(tmp_path, spares=1)
    lose_machine(job, "n1")
    assert sorted(job.core.job.holders.values()) == ["n0.r0", "n0.s0", "n0.w0", "n0.w1"]


def test_where_each_gpu_has_a_process_the_ranks_of_a_lost_machine_have_no_place(tmp_path: Path) -> None:
    job = of_two_machines(tmp_path, gpus=True)
    lose_machine(job, "n1")
    assert started_on(job) == []
    (fell,) = job.told(events.JobFell)
    assert "no other machine has a place for rank 2 (n0: each of its GPUs has a process)" in fell.reason
    assert fell.reason.count("the agent of n1 has been silent") == 1, "it is told once"
    assert fell.directory, "what all held is saved"


def test_a_gpu_that_a_process_has_left_is_a_place_for_one_rank_of_a_lost_machine(tmp_path: Path) -> None:
    job = of_two_machines(tmp_path, gpus=True, spares=2)
    job.die("n0.s1", 0, 3)
    job.tick(1.0)
    lose_machine(job, "n1")
    assert started_on(job) == [("n0", 3, "n0.s1")]
    assert sorted(job.core.job.holders.values()) == ["n0.r0", "n0.s0", "n0.w0", "n0.w1"]


def test_the_place_of_a_rank_that_is_lost_in_the_same_step_stays_its_own(tmp_path: Path) -> None:
    job = of_two_machines(tmp_path, gpus=True)
    job.core.job.quarantine["GPU-n0.w1"] = "it has uncorrectable errors"
    job.die("n0.w1")
    job.die("n0.w0")
    job.settle()
    assert started_on(job) == [("n0", 0, "n0.w0")]
    (fell,) = job.told(events.JobFell)
    assert "it has uncorrectable errors" in fell.reason


def test_a_rank_whose_gpu_is_bad_goes_on_on_one_that_nobody_has_used(tmp_path: Path) -> None:
    job = of_two_machines(tmp_path, gpus=True)
    devices = {w: f"nvidia-driver GPU-{w}" for w in job.ranks if w.startswith("n0")}
    job.give(msg.HealthSources({"nvidia": "ok"}, devices, ("GPU-bad", "GPU-well")), "n0")
    job.core.job.quarantine |= {"GPU-n0.w1": "it has uncorrectable errors", "GPU-bad": "it fell off the bus"}
    job.die("n0.w1")
    job.settle()
    assert started_on(job) == [("n0", 1, "GPU-well")]
    assert job.core.job.holders[1] == "n0.r0"
    assert job.core.job.free_gpus(job.core.job.nodes["n0"], ()) == []


def test_a_machine_without_spares_is_covered_where_the_other_one_has_places(tmp_path: Path) -> None:
    job = of_two_machines(tmp_path)
    assert job.core._parts.judge._short_of_spares() == ""
    bounded = of_two_machines(tmp_path, gpus=True)
    short = "spares and free places elsewhere could take over 0 of 2 ranks of n0"
    assert bounded.core._parts.judge._short_of_spares() == short


def test_the_limit_is_for_each_rank_and_hour(tmp_path: Path) -> None:
    job = made(tmp_path, limit=1)
    respawns = job.core.driver.spares.respawns
    lose(job, "n0.w1", 7)
    assert respawns.spent == "--respawn-limit 1 is used up for rank 1"
    lose(job, "n0.w2", 8)
    assert job.core.job.holders[2] == "n0.r1"
    respawns.now_s = job.now_s + HOUR_S
    assert respawns.spent == ""


def test_what_was_started_under_an_earlier_controller_counts_for_the_hour(tmp_path: Path) -> None:
    job = made(tmp_path, limit=2)
    respawns, to_this_clock_s = job.core.driver.spares.respawns, job.now_s - 1700000000.0
    respawns.recall_starts(["1 1700000000.0", "1 1699990000.0", "2 1699999999.5"], to_this_clock_s)
    assert respawns.number(1, job.now_s) == "2 of 2 within the hour"
    lose(job, "n0.w1", 7)
    assert [(e.rank, e.count, e.limit) for e in job.told(events.ProcessRespawned)] == [(1, 2, 2)]
    lose(job, "n0.r0", 8)
    (fell,) = job.told(events.JobFell)
    assert "that was done 2 times within the hour" in fell.reason


def test_a_process_that_cannot_be_started_leaves_a_checkpoint(tmp_path: Path) -> None:
    job = made(tmp_path, limit=2)
    job.unstartable.add(1)
    job.die("n0.w1")
    job.settle()
    assert starts(job) == [1, 1]
    (fell,) = job.told(events.JobFell)
    assert (fell.exit_code, bool(fell.directory)) == (75, True)
    assert "2 times within the hour" in fell.reason


def test_nothing_is_started_where_the_device_is_in_quarantine(tmp_path: Path) -> None:
    job = made(tmp_path)
    job.core.job.quarantine["n0"] = "its memory has uncorrectable errors"
    job.die("n0.w1")
    job.settle()
    assert starts(job) == []
    (fell,) = job.told(events.JobFell)
    assert "its memory has uncorrectable errors" in fell.reason


@pytest.mark.parametrize("limit", [0, 3])
def test_without_it_the_job_falls(tmp_path: Path, limit: int) -> None:
    job = made(tmp_path, limit=limit)
    job.die("n0.w1")
    job.settle()
    assert bool(job.told(events.JobFell)) == (limit == 0)
