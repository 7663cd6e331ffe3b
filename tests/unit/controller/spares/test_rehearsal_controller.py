"""Where no spare is, a process is started that rehearses; in a check, too, before it ends."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from support.fake_job import FakeJob

from torchrelay.controller.decide.replacement.rehearse import BETWEEN_S, FIRST_AFTER_S, OPEN_AFTER_S
from torchrelay.protocol import events
from torchrelay.protocol import messages as msg

SETTLED = msg.Report("train.py", 9, 4096, 512, 2, (), boundary=3, settled=True)


def made(folder: Path, spares: int = 0, **config: Any) -> FakeJob:
    job = FakeJob(folder, spares=spares, config={"respawn_limit": 3, "rehearse_every_s": 1800.0, **config})
    job.train()
    for worker in job.ranks:
        job.say(worker, SETTLED)
    return job


def after(job: FakeJob, seconds: float) -> None:
    for _ in range(int(seconds) + 1):
        job.tick(1.0)
        job.settle()


def asked(job: FakeJob) -> list[str]:
    return [o.beside for o in job.orders if isinstance(o, msg.StartRehearser)]


def outcomes(job: FakeJob) -> list[tuple[int, str, str]]:
    return [(e.rank, e.outcome, e.spare) for e in job.told(events.RehearsalFinished)]


def told(job: FakeJob) -> tuple[str, ...]:
    return job.core.status(job.now_s).coverage[0].rehearsed


def fenced(job: FakeJob) -> list[str]:
    return [o.worker for o in job.orders if isinstance(o, msg.Fence)]


def test_without_spares_a_process_is_started_for_each_rehearsal_and_ended_after_it(tmp_path: Path) -> None:
    job = made(tmp_path)
    after(job, FIRST_AFTER_S)
    assert (asked(job), outcomes(job), fenced(job)) == (["n0.w0"], [(0, "same", "n0.t0")], ["n0.t0"])
    assert "n0.t0" not in job.core.job.workers
    after(job, BETWEEN_S)
    assert outcomes(job)[1:] == [(1, "same", "n0.t1")]
    assert fenced(job) == ["n0.t0", "n0.t1"]
    assert told(job)[0] == "rehearsed at step 5: rank 0 of 3, bitwise"
    assert job.told(events.WorkerEnded) == []


def test_a_rehearser_is_no_spare_and_a_loss_ends_its_rehearsal(tmp_path: Path) -> None:
    job = made(tmp_path)
    job.mute.add("n0.t0")
    after(job, FIRST_AFTER_S)
    assert job.core.status(job.now_s).spares_total == 0
    job.die("n0.w1")
    job.settle()
    assert (outcomes(job), "n0.t0" in fenced(job)) == ([(0, "broken-off", "n0.t0")], True)
    assert job.core.job.holders[1] == "n0.r0"


def test_a_spare_rehearses_where_there_is_one(tmp_path: Path) -> None:
    job = made(tmp_path, spares=1)
    after(job, FIRST_AFTER_S)
    assert (asked(job), outcomes(job)) == ([], [(0, "same", "n0.s0")])


def test_where_no_process_would_take_over_none_rehearses(tmp_path: Path) -> None:
    job = made(tmp_path, respawn_limit=0)
    after(job, FIRST_AFTER_S)
    assert (asked(job), outcomes(job)) == ([], [])


def test_in_pods_whose_agents_start_nothing_only_spares_rehearse(tmp_path: Path) -> None:
    job = made(tmp_path, adopted=True)
    after(job, FIRST_AFTER_S)
    assert (asked(job), outcomes(job)) == ([], [])


def test_no_memory_is_told_and_it_is_tried_again_later(tmp_path: Path) -> None:
    job = made(tmp_path)
    job.no_memory = "0.1 GiB of memory are left on this machine"
    after(job, FIRST_AFTER_S)
    assert outcomes(job) == [(0, "open", "")]
    assert told(job)[0] == "not rehearsed: rank 0: 0.1 GiB of memory are left on this machine"
    job.no_memory = ""
    after(job, OPEN_AFTER_S)
    assert (0, "same", "n0.t2") in outcomes(job), "the second one was of rank 1"


def test_one_that_is_killed_is_told_and_another_one_tries_later(tmp_path: Path) -> None:
    job = made(tmp_path)
    job.mute.add("n0.t0")
    after(job, FIRST_AFTER_S)
    job.die("n0.t0")
    job.settle()
    assert [(e.outcome, e.reason) for e in job.told(events.RehearsalFinished)] == [
        ("open", "its process ended with exit code 137")
    ]
    assert job.stop is None


def test_what_fails_lowers_the_level_before_a_rank_is_lost(tmp_path: Path) -> None:
    job = made(tmp_path)
    job.rehearsed[0] = ("failed", "OperationalError: table losses already exists")
    after(job, FIRST_AFTER_S)
    level = job.told(events.Protection)[-1]
    assert (level.level, level.reason.split(";")[0]) == (
        "partly",
        "rank 0 could not be replaced, as a rehearsal has shown",
    )


def test_on_a_device_that_a_rank_trains_on_nothing_is_tried_and_the_report_says_why(tmp_path: Path) -> None:
    job = made(tmp_path)
    job.core.job.workers["n0.w0"].devices = ("GPU-0",)
    after(job, FIRST_AFTER_S)
    assert asked(job) == []
    assert told(job)[0] == "not rehearsed: rank 0: it would take memory of a device that a rank trains on"


def held(folder: Path, **changes: Any) -> FakeJob:
    job = made(folder, check_steps=5, respawn_limit=0)
    for name, value in changes.items():
        setattr(job, name, value)
    for worker in job.ranks:
        job.say(worker, msg.Held(5))
    return job


def test_a_check_rehearses_two_ranks_in_one_process_before_it_ends(tmp_path: Path) -> None:
    job = held(tmp_path)
    assert job.stop is None, "it waits for what the rehearsals show"
    assert [event.steps for event in job.told(events.RanksHeld)] == [5]
    job.settle()
    assert outcomes(job) == [(0, "same", "n0.t0"), (1, "same", "n0.t0")]
    assert asked(job) == ["n0.w0"]
    assert job.stop is not None
    assert job.told(events.CoverageKnown)[-1].coverage["rehearsed"][1] == "rehearsed at step 5: rank 1 of 3, bitwise"


def test_a_check_ends_with_the_reason_where_nothing_can_be_rehearsed(tmp_path: Path) -> None:
    job = held(tmp_path, no_memory="no memory")
    job.settle()
    assert job.stop is not None
    assert job.told(events.CoverageKnown)[-1].coverage["rehearsed"] == ["not rehearsed: rank 1: no memory"]


def test_a_check_rehearses_ranks_whose_script_has_ended_as_long_as_they_wait(tmp_path: Path) -> None:
    job = made(tmp_path, check_steps=50, respawn_limit=0)
    for worker in job.ranks:
        job.say(worker, msg.Finishing(5))
    assert job.sent(msg.MayFinish) == {}
    job.settle()
    assert outcomes(job) == [(0, "same", "n0.t0"), (1, "same", "n0.t0")]
    assert job.stop is not None


def test_an_agent_that_names_a_process_of_the_job_as_the_one_it_has_started_takes_it_from_nobody(
    tmp_path: Path,
) -> None:
    job = made(tmp_path)
    ranks = {worker: job.core.job.workers[worker] for worker in job.ranks}
    job.attach("n9")
    for node in ("n0", "n9"):
        for worker in job.ranks:
            job.give(msg.RehearserStarted(worker, 1), node)
            job.give(msg.LateWorker(worker, 0, 1), node)
    assert {worker: job.core.job.workers[worker] for worker in job.ranks} == ranks
    after(job, FIRST_AFTER_S)
    assert outcomes(job) == [(0, "same", "n0.t0")]
