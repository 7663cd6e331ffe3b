"""Copies of a lost rank's journals that were read before its process had ended, while it still went on."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.fake_job import FakeJob

from torchrelay.controller.execution.rereading import ANSWER_TIMEOUT_S
from torchrelay.protocol import events
from torchrelay.protocol import messages as msg

LOST = {2: "n1.w0", 3: "n1.w1"}


@pytest.fixture
def job(tmp_path: Path) -> FakeJob:
    return made(tmp_path)


def made(folder: Path, keeper: str = "n0", **changes: object) -> FakeJob:
    """The ranks of n1 are copied to `keeper`; n3 has a spare and no rank."""
    job = FakeJob(folder, world_size=4, spares=2, nnodes=2, **changes)  # type: ignore[arg-type]  # handed on
    if keeper == "n3":
        job.infos.append(msg.WorkerInfo("n3.s0", -1, 300))
        job.attach("n3")
    job.train()
    job.tick(1.0)
    assert job.sent(msg.CopyJournals)["n1.w0"].node == keeper
    for worker in job.ranks:
        job.say(worker, msg.JournalsCopied(job.sent(msg.CopyJournals)[worker].node, 3))
    return job


def lose(job: FakeJob, *reads: int | None) -> None:
    """A pod leaves the cluster while survivors stand at 5. `reads`: up to where its ranks are copied, read by read."""
    job.copied = {worker: list(reads) for worker in LOST.values()}
    job.silent.add("n1")
    job.core.lose("n1", "its pod is gone", job.now_s)
    job._collect()
    job.settle()


def reads(job: FakeJob) -> list[str]:
    return sorted(order.worker for _, order in job.sent_to if isinstance(order, msg.FetchJournal))


def refusal(job: FakeJob) -> str:
    (finished,) = job.told(events.MigrationFinished)
    assert finished.outcome == "abandoned"
    assert job.stop is not None
    reason: str = finished.reason
    return reason


def test_journals_of_steps_that_were_done_after_the_first_read_are_found_by_a_second_one(job: FakeJob) -> None:
    lose(job, 3, 5)
    assert job.stop is None
    assert job.core.job.holders == {0: "n0.w0", 1: "n0.w1", 2: "n0.s0", 3: "n0.s1"}
    assert {plan.journal for w, plan in job.sent(msg.Plan).items() if w in ("n0.s0", "n0.s1")} == {
        b"n1.w0@5",
        b"n1.w1@5",
    }
    assert reads(job) == ["n1.w0", "n1.w0", "n1.w1", "n1.w1"]
    (said,) = [d.text for d in job.told(events.Decision) if "read again" in d.text]
    assert "the state after step 5 cannot be made of that" in said


def test_copies_that_reach_far_enough_are_read_once(job: FakeJob) -> None:
    lose(job, 5)
    assert job.stop is None
    assert reads(job) == ["n1.w0", "n1.w1"]


def test_copies_that_stay_behind_are_given_up_after_the_second_read(job: FakeJob) -> None:
    lose(job, 3)
    reason = refusal(job)
    assert "the state after step 5 cannot be made of that" in reason
    assert "also after the copies were read again" in reason
    assert reads(job) == ["n1.w0", "n1.w0", "n1.w1", "n1.w1"]


def test_a_second_read_that_is_not_answered_is_waited_for_no_longer_than_its_time(job: FakeJob) -> None:
    lose(job, 3, None)
    job.tick(ANSWER_TIMEOUT_S - 1.0)
    assert job.stop is None
    assert job.told(events.MigrationFinished) == []
    job.tick(1.5)
    assert "n0 did not send the copies again within 10 s" in refusal(job)


def test_an_answer_that_comes_too_late_changes_nothing(job: FakeJob) -> None:
    lose(job, 3, None)
    job.tick(ANSWER_TIMEOUT_S + 0.5)
    refusal(job)
    job.give(msg.JournalContent("n1.w0", {5: b"late"}, {}, b"set-up"), "n0")
    assert len(job.told(events.MigrationFinished)) == 1


def test_a_keeper_that_is_lost_meanwhile_is_not_waited_for(tmp_path: Path) -> None:
    job = made(tmp_path, "n3")
    lose(job, 3, None)
    job.core.lose("n3", "its pod is gone", job.now_s)
    job._collect()
    assert "the node with the copies of n1.w0, n1.w1 is lost as well" in refusal(job)


def test_another_loss_while_waiting_begins_anew_and_reads_again(tmp_path: Path) -> None:
    job = FakeJob(tmp_path, world_size=4, spares=3, nnodes=2)
    job.train()
    job.tick(1.0)
    lose(job, 3, None, 5)
    job.die("n0.w1")
    job.settle()
    assert job.stop is None
    assert sorted(job.core.job.holders.values()) == ["n0.s0", "n0.s1", "n0.s2", "n0.w0"]
    job.tick(ANSWER_TIMEOUT_S + 1.0)
    assert len(job.told(events.MigrationFinished)) == 1


def test_a_roll_back_is_asked_for_only_after_the_second_read(tmp_path: Path) -> None:
    job = made(tmp_path, config={"buddy_every": 2})
    lose(job, 3, None)
    assert not [o for o in job.orders if isinstance(o, msg.FetchKept)]
    job.tick(ANSWER_TIMEOUT_S + 0.5)
    assert [o for o in job.orders if isinstance(o, msg.FetchKept)]


def test_a_joiner_that_was_set_up_for_a_loop_that_is_over_is_not_led_into_the_next_one(tmp_path: Path) -> None:
    job = FakeJob(tmp_path, world_size=2, spares=2, nnodes=2)
    job.train()
    job.tick(1.0)
    job.copied = {"n1.w0": [3, None]}
    job.silent.add("n1")
    job.core.lose("n1", "its pod is gone", job.now_s)
    job._collect()
    job.settle()
    assert job.sent(msg.Assign)["n0.s0"].set_up == b"set-up"
    newer = dict.fromkeys((4, 5), b"newer")
    job.give(msg.JournalContent("n1.w0", newer, {4: b"gate"}, b"next loop"), "n0")
    job.settle()
    assert job.core.job.holders == {0: "n0.w0", 1: "n0.s1"}
    assert job.sent(msg.Assign)["n0.s1"].set_up == b"next loop"
    assert "n0.s0" in job.dead
    assert "n0.s0" not in job.sent(msg.Plan)


def test_what_a_dead_process_left_on_its_own_node_is_read_once(tmp_path: Path) -> None:
    job = FakeJob(tmp_path, world_size=3, spares=1)
    job.train()
    job.tick(1.0)
    job.copied = {"n0.w1": [3]}
    job.die("n0.w1")
    job.settle()
    assert reads(job) == ["n0.w1"]
    assert refusal(job).endswith("the state after step 5 cannot be made of that")
