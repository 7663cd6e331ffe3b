"""In a pod whose container starts again, the process that comes back takes over its own rank where no spare does."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from support.fake_job import FakeJob

from torchrelay.protocol import events
from torchrelay.protocol import messages as msg

PODS = {"n0", "n1", "n2"}
IN_PODS: dict[str, Any] = {"adopted": True, "restarts": True, "respawn_option": "annotation respawn-limit"}


def made(folder: Path, limit: int = 3, again: set[str] | None = None, spares: int = 0, **config: Any) -> FakeJob:
    """Each rank is in a pod of its own; `again`: those whose containers start again."""
    job = FakeJob(folder, 3, spares, nnodes=3, config=IN_PODS | {"respawn_limit": limit} | config)
    job.core.job.starting_again = PODS if again is None else again
    job.core.job.not_again = dict.fromkeys(PODS - job.core.job.starting_again, "its pod does not start again")
    job.train()
    return job


def come_back(job: FakeJob, worker: str, rank: int, warm: bool = True) -> None:
    """The kubelet has started a process, with the environment of the rank."""
    job.spares.append(worker)
    job.give(msg.WorkerStarted(worker, rank, 300), worker.partition(".")[0])
    if warm:
        job.say(worker, msg.Warm("2.13"))
    job.settle()


def holders(job: FakeJob) -> list[str]:
    return [worker for _, worker in sorted(job.core.job.holders.items())]


def lose(job: FakeJob, worker: str, boundary: int = 5) -> None:
    job.boundary = boundary
    job.progress()
    job.die(worker)
    job.settle()


def test_a_process_that_is_started_again_takes_over_its_own_rank(tmp_path: Path) -> None:
    job = made(tmp_path)
    lose(job, "n1.w0")
    assert job.told(events.MigrationFinished) == []
    come_back(job, "n1.w1", 1)
    (finished,) = job.told(events.MigrationFinished)
    assert (finished.outcome, finished.kind, finished.spare) == ("committed", "unplanned", "n1.w1")
    assert holders(job) == ["n0.w0", "n1.w1", "n2.w0"]
    assert not [o for o in job.orders if isinstance(o, msg.StartWorker)]
    decided = [d.text for d in job.told(events.Decision)]
    assert any("waits for the process that its pod starts again (1 of 3 within the hour)" in text for text in decided)


def test_a_warm_spare_goes_first_and_what_comes_back_is_the_next_one(tmp_path: Path) -> None:
    job = made(tmp_path, spares=1)
    lose(job, "n1.w0")
    assert holders(job)[1] == "n0.s0"
    come_back(job, "n1.w1", 1)
    assert [w.worker for w in job.core.job.spares] == ["n1.w1"]
    lose(job, "n2.w0", 7)
    assert holders(job) == ["n0.w0", "n0.s0", "n1.w1"]


def test_of_two_that_were_lost_each_takes_over_its_own(tmp_path: Path) -> None:
    job = made(tmp_path)
    job.die("n1.w0")
    job.die("n2.w0")
    job.settle()
    come_back(job, "n2.w1", 2)
    assert job.told(events.MigrationFinished) == []
    come_back(job, "n1.w1", 1)
    assert holders(job) == ["n0.w0", "n1.w1", "n2.w1"]


def test_a_spare_that_is_ready_sooner_is_taken(tmp_path: Path) -> None:
    job = made(tmp_path)
    job.core.job.spares_wanted = 1
    lose(job, "n1.w0")
    job.spares.append("n0.s9")
    job.give(msg.WorkerStarted("n0.s9", -1, 300), "n0")
    job.say("n0.s9", msg.Warm("2.13"))
    job.settle()
    assert holders(job)[1] == "n0.s9"


def test_where_it_may_not_it_is_no_spare_for_its_own_rank_either(tmp_path: Path) -> None:
    job = made(tmp_path, limit=0)
    job.core.job.spares_coming = 1
    lose(job, "n1.w0")
    come_back(job, "n1.w1", 1)
    assert job.told(events.MigrationFinished) == []
    come_back(job, "n2.s9", -1)
    assert holders(job)[1] == "n2.s9"


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"again": set()}, "no process is started again in its place: its pod does not start again"),
        ({"limit": 0}, "no process is started in the place of a lost one"),
        ({"respawn_barred": "respawn is not among the rungs"}, "respawn is not among the rungs"),
    ],
)
def test_where_it_may_not_survivors_save(tmp_path: Path, changes: dict[str, Any], reason: str) -> None:
    job = made(tmp_path, **changes)
    lose(job, "n1.w0")
    fallen = job.core.fallen
    assert fallen is not None
    assert fallen.directory
    refused = job.core.driver.spares.refused[1]
    assert (refused.is_final, reason in refused.in_place) == (True, True), refused
    assert "no spare is left" in refused.spare


def test_where_spares_may_not_take_over_it_does(tmp_path: Path) -> None:
    job = made(tmp_path, spares=1, spares_barred="next-spare is not among the rungs")
    lose(job, "n1.w0")
    come_back(job, "n1.w1", 1)
    assert holders(job)[1] == "n1.w1"


def test_not_where_its_node_is_to_be_left(tmp_path: Path) -> None:
    job = made(tmp_path)
    job.core.job.quarantine["n1"] = "its device has failed"
    lose(job, "n1.w0")
    assert job.core.fallen is not None
    assert "its device has failed" in job.core.driver.spares.refused[1].in_place


def test_not_more_often_than_the_limit(tmp_path: Path) -> None:
    job = made(tmp_path, limit=1)
    lose(job, "n1.w0")
    come_back(job, "n1.w1", 1)
    lose(job, "n1.w1", 7)
    assert job.core.fallen is not None
    refused = job.core.driver.spares.refused[1]
    assert "1 time within the hour (annotation respawn-limit 1)" in refused.in_place


def test_a_rank_that_is_lost_at_the_same_step_a_third_time_gets_no_spare_either(tmp_path: Path) -> None:
    job = made(tmp_path, spares=3)
    for worker in ("n1.w0", "n0.s0", "n0.s1"):
        lose(job, worker, 7)
    assert holders(job)[1] == "n0.s1"
    fallen = job.core.fallen
    assert fallen is not None
    assert fallen.losses_at_step == 3
    assert "rank 1 was lost at step 7 3 times (n1.w0 was killed by SIGKILL; " in job.core.driver.spares.refused[1].spare


def test_not_where_its_pod_is_lost(tmp_path: Path) -> None:
    job = made(tmp_path)
    job.tick(1.0)
    job.say("n1.w0", msg.JournalsCopied(job.sent(msg.CopyJournals)["n1.w0"].node, 5))
    job.core.lose("n1", "its pod is deleted", job.now_s)
    job.tick()
    job.settle()
    assert job.core.fallen is not None
    assert "its pod is gone" in job.core.driver.spares.refused[1].in_place


def test_one_that_came_back_and_died_in_turn_is_waited_for_again(tmp_path: Path) -> None:
    job = made(tmp_path)
    lose(job, "n1.w0")
    come_back(job, "n1.w1", 1, warm=False)
    job.die("n1.w1")
    job.settle()
    come_back(job, "n1.w2", 1)
    assert holders(job)[1] == "n1.w2"


def test_a_pod_that_goes_while_it_is_waited_for_is_waited_for_no_more(tmp_path: Path) -> None:
    job = made(tmp_path)
    lose(job, "n1.w0")
    assert job.core.fallen is None
    job.core.job.starting_again = PODS - {"n1"}
    job.core.job.not_again = {"n1": "its pod is being deleted"}
    job.core.spares_changed(job.now_s)
    job.collect() if hasattr(job, "collect") else job._collect()
    job.settle()
    assert job.core.fallen is not None
    assert "its pod is being deleted" in job.core.driver.spares.refused[1].in_place


def test_the_level_says_what_holds_without_a_spare(tmp_path: Path) -> None:
    job = made(tmp_path)
    for worker in job.ranks:
        job.say(worker, msg.Report("train.py", 30, 400, 900, 4, (), (), (), 5, True))
    status = job.core.status(job.now_s)
    assert (status.protection, "is started again in its place" in status.protection_reason) == ("partly", True)
    assert "there is no spare for ranks whose pod is lost" in status.protection_reason
    job.core.job.starting_again = PODS - {"n2"}
    job.core.spares_changed(job.now_s)
    job.tick()
    assert [p.level for p in job.told(events.Protection)][-2:] == ["partly", "unprotected"]
