"""What the controller does with the protection reports of ranks: tells them as one, burns no spare, ends checks."""

from __future__ import annotations

import dataclasses
import signal
from pathlib import Path
from typing import Any

import pytest
from support.fake_job import FakeJob

from torchrelay.controller.config import Policy
from torchrelay.protocol import events
from torchrelay.protocol import messages as msg
from torchrelay.protocol.names import BARS, BARS_LATER, GATE_SECRET_BYTES

ITERATOR = msg.Gap("iterator", BARS, "it (cycle): what it yields next cannot be captured", "train.py", 7)
LATER = msg.Gap("kept-workers", BARS_LATER, "persistent_workers", "train.py", 9)


def report(*gaps: msg.Gap) -> msg.Report:
    return msg.Report("train.py", 30, 400, 900, 4, tuple(g.text for g in gaps), (), gaps, 5, True)


@pytest.fixture
def job(tmp_path: Path) -> FakeJob:
    made = FakeJob(tmp_path)
    made.train()
    return made


def levels(job: FakeJob) -> list[Any]:
    return [event.coverage["level"] for event in job.told(events.CoverageKnown)]


def test_a_report_is_told_when_it_says_something_new(job: FakeJob) -> None:
    told = len(job.told(events.ReportMade))
    for _ in range(3):
        job.say("n0.w2", report(LATER))
    assert [event.rank for event in job.told(events.ReportMade)[told:]] == [2]
    job.say("n0.w2", report())
    assert len(job.told(events.ReportMade)) == told + 2


def test_no_spare_is_spent_on_a_rank_that_no_joiner_could_become(job: FakeJob) -> None:
    job.say("n0.w2", report(ITERATOR))
    job.die("n0.w1")
    job.settle()
    job.tick(3.0)  # of which the first two are for a report that is still on its way
    assert job.sent(msg.Assign) == {}
    assert job.told(events.MigrationStarted) == []
    assert job.stop is not None
    assert job.stop.exit_code == 137
    assert (
        "cannot be replaced: rank 2: it (cycle): what it yields next cannot be captured (train.py:7)" in job.stop.reason
    )


def test_what_bars_later_does_not_bar_now(job: FakeJob) -> None:
    for worker in job.ranks:
        job.say(worker, report(LATER))
    job.die("n0.w1")
    job.settle()
    assert list(job.sent(msg.Assign)) == ["n0.s0"]
    assert [f.outcome for f in job.told(events.MigrationFinished)] == ["committed"]


def test_what_barred_and_is_gone_does_not_bar_any_more(job: FakeJob) -> None:
    job.say("n0.w2", report(ITERATOR))
    job.say("n0.w2", report())
    job.die("n0.w1")
    job.settle()
    assert [f.outcome for f in job.told(events.MigrationFinished)] == ["committed"]


def test_a_move_that_is_barred_is_refused_with_the_reason(job: FakeJob) -> None:
    job.say("n0.w0", report(ITERATOR))
    reply = job.core.user_requests.migrate(msg.MigrateRequest(1, "a fan"), job.now_s)
    assert not reply.accepted
    assert "it (cycle)" in reply.message


def test_a_hang_that_cannot_be_repaired_is_named_once_and_the_job_goes_on(job: FakeJob) -> None:
    job.say("n0.w0", report(ITERATOR))
    job.still = set(job.ranks)
    job.waiting = {"n0.w0", "n0.w2"}
    job.tick(20.0)
    (suspected,) = job.told(events.Suspected)
    assert suspected.rank == 1
    assert suspected.stack == ("f (train.py:3)",)
    assert "it is not replaced: rank 0: it (cycle)" in suspected.reason
    assert job.told(events.MigrationStarted) == []
    assert job.stop is None


@pytest.mark.parametrize(
    ("config", "timeout_s", "limit_s"), [({"policy": Policy(hang_timeout_s=40.0)}, 0.0, 40.0), ({}, 50.0, 50.0)]
)
def test_a_hang_that_cannot_be_repaired_ends_the_job_when_the_others_have_waited_long_enough(
    tmp_path: Path, config: dict[str, Any], timeout_s: float, limit_s: float
) -> None:
    job = FakeJob(tmp_path, config=config)
    job.train()
    job.say("n0.w0", dataclasses.replace(report(ITERATOR), group_timeout_s=timeout_s))
    job.still = set(job.ranks)
    job.waiting = {"n0.w0", "n0.w2"}
    job.tick(limit_s - 2)
    assert job.stop is None
    job.tick(4.0)
    assert job.stop is not None
    assert job.stop.exit_code == 1
    assert "rank 1 has shown no progress" in job.stop.reason
    assert "rank 1 cannot be replaced: rank 0: it (cycle)" in job.stop.reason
    assert "f (train.py:3)" in job.stop.reason
    (fell,) = job.told(events.JobFell)
    assert (fell.rank, fell.exit_code, fell.directory) == (1, 1, "")


def test_the_report_of_the_job_is_told_when_all_ranks_have_spoken_and_when_it_changes(job: FakeJob) -> None:
    job.say("n0.w0", report())
    job.say("n0.w1", report())
    assert levels(job) == []
    job.say("n0.w2", report())
    job.say("n0.w2", report())
    job.tick(2.0)
    assert levels(job) == ["protected"]
    job.say("n0.w2", report(ITERATOR))
    assert levels(job) == ["protected", "unprotected"]
    (told,) = job.core.status(job.now_s).coverage
    assert (told.level, told.gaps[0].line) == ("unprotected", 7)


def test_a_check_ends_when_every_rank_stands_still(tmp_path: Path) -> None:
    job = FakeJob(tmp_path, world_size=2, spares=0, config={"check_steps": 5})
    job.train()
    for worker in job.ranks:
        job.say(worker, report(LATER))
    job.say("n0.w0", msg.Held(5))
    assert job.stop is None
    job.say("n0.w1", msg.Held(5))
    assert job.stop is not None
    assert (job.stop.exit_code, job.stop.signal) == (0, signal.SIGKILL)
    assert levels(job)[-1] == "partly"
    assert [event.steps for event in job.told(events.RanksHeld)] == [5]


def test_a_check_of_a_script_that_cannot_be_protected_ends_at_once(tmp_path: Path) -> None:
    job = FakeJob(tmp_path, world_size=2, spares=0, config={"check_steps": 5})
    job.say("n0.w0", msg.Disabled("the process group uses nccl"))
    assert job.stop is not None
    assert levels(job)[-1] == "unprotected"


def test_a_check_of_a_script_that_ends_before_is_told_as_unprotected(tmp_path: Path) -> None:
    job = FakeJob(tmp_path, world_size=2, spares=0, config={"check_steps": 5})
    for worker in list(job.ranks):
        job.die(worker, signal=0, exit_code=0)
    assert levels(job) == ["unprotected"]
    (told,) = job.told(events.CoverageKnown)
    assert "the job ended before its training was protected" in told.coverage["reason"]


def test_a_loader_that_only_itself_could_wake_is_replaced_in_the_time_of_a_step(job: FakeJob) -> None:
    job.phases = {"n0.w1": "after"}
    job.still = set(job.ranks)
    job.waiting = {"n0.w0", "n0.w2"}
    job.tick(9.0)
    assert job.told(events.Suspected) == []  # storage has bad moments
    job.still, job.waiting = set(), set()
    job.tick(1.0)
    job.asleep = {"n0.w1"}
    job.still, job.waiting = set(job.ranks), {"n0.w0", "n0.w2"}
    job.tick(9.0)
    (suspected,) = job.told(events.Suspected)
    assert suspected.rank == 1
    assert "only it could bring about" in suspected.reason


def told_levels(job: FakeJob) -> list[str]:
    return [event.level for event in job.told(events.Protection)]


def test_a_level_is_told_when_it_changes_and_never_in_the_midst_of_a_migration(job: FakeJob) -> None:
    assert told_levels(job) == ["armed"]
    for worker in job.ranks:
        job.say(worker, report())
    assert told_levels(job) == ["armed", "protected"]
    job.mute.add("n0.s0")
    job.die("n0.w1")
    job.settle()
    assert told_levels(job) == ["armed", "protected"], "the spare is taken, and the migration under way"
    job.mute.clear()
    job.core.job.spares_coming = 1
    job.settle()
    status = job.core.status(job.now_s)
    assert (status.protection, status.protection_reason) == (status.coverage[0].level, status.coverage[0].reason)


def test_the_last_spare_takes_the_protection_with_it(job: FakeJob) -> None:
    for worker in job.ranks:
        job.say(worker, report())
    job.die("n0.w1")
    job.settle()
    job.say("n0.s0", report())
    job.tick(1.0)
    last = job.told(events.Protection)[-1]
    assert (last.level, last.reason.partition(",")[0]) == ("unprotected", "no spare is there")


def test_a_spare_on_the_same_machine_alone_does_not_cover_the_machine(tmp_path: Path) -> None:
    job = FakeJob(tmp_path, 2, 1, nnodes=2)
    job.train()
    for worker in job.ranks:
        job.say(worker, report())
        keeper = "n1" if worker.startswith("n0") else "n0"
        job.core.job.workers[worker].copied_to = keeper
    job.tick(1.0)
    last = job.told(events.Protection)[-1]
    assert last.level == "partly"
    assert "spares and free places elsewhere could take over 0 of 1 ranks of n0" in last.reason


def in_pods(tmp_path: Path, machines: str, copied_to: str) -> tuple[str, str]:
    """Return the level and the reason of a job of three pods with a rank each. `machines`, `copied_to`: pod by pod."""
    job = FakeJob(tmp_path, 3, 1, nnodes=3, config={"adopted": True})
    job.core.job.machines.update(zip(("n0", "n1", "n2"), machines.split()))
    job.train()
    for worker, keeper in zip(job.ranks, copied_to.split()):
        job.say(worker, report())
        held = job.core.job.workers[worker]
        held.copies_to = held.copied_to = keeper
    job.tick(1.0)
    last = job.told(events.Protection)[-1]
    return last.level, last.reason


def test_pods_that_share_a_machine_promise_nothing_for_the_machine(tmp_path: Path) -> None:
    """One machine's loss takes all of them, and the copies with them."""
    level, reason = in_pods(tmp_path, "m0 m0 m0", "n1 n2 n0")
    assert level == "protected"
    assert reason.endswith("and so can those of a pod that is lost")


def test_pods_on_several_machines_cover_each_machine_where_the_copies_are_on_another_one(tmp_path: Path) -> None:
    level, reason = in_pods(tmp_path, "m0 m0 m1", "n2 n2 n0")
    assert level == "protected"
    assert reason.endswith("and so can those of a machine that is lost")


def test_a_copy_in_another_pod_of_the_same_machine_does_not_cover_the_machine(tmp_path: Path) -> None:
    level, reason = in_pods(tmp_path, "m0 m0 m1", "n1 n2 n0")
    assert level == "partly"
    assert "the loss of a whole machine ends the job: no other machine has all that its ranks hold yet" in reason


def test_all_ranks_of_a_generation_are_given_one_secret_and_each_generation_another(tmp_path: Path) -> None:
    job = FakeJob(tmp_path, spares=2)
    job.train()
    given = [{order.gate_secret for order in job.sent(msg.Protect).values()}]
    for worker in ("n0.w1", "n0.w0"):
        job.die(worker)
        job.settle()
        rebuild = job.sent(msg.Rebuild)
        newest = max(order.generation for order in rebuild.values())
        members = {name: order for name, order in rebuild.items() if order.generation == newest}
        assert sorted(members) == sorted(job.core.job.holders.values())
        given.append({order.gate_secret for order in members.values()})
    assert [len(secrets) for secrets in given] == [1, 1, 1]
    assert len(set.union(*given)) == 3
    assert {len(secret) for secret in set.union(*given)} == {GATE_SECRET_BYTES}


def test_ranks_that_are_not_protected_are_given_no_secret(tmp_path: Path) -> None:
    job = FakeJob(tmp_path)
    job.say("n0.w0", msg.Disabled("no torch"))
    assert {order.gate_secret for order in job.sent(msg.Protect).values()} == {b""}


def test_a_rank_that_is_being_replaced_stands_in_for_nobody(tmp_path: Path) -> None:
    job = FakeJob(tmp_path, world_size=2, spares=2)
    job.train()
    for worker in job.ranks:
        job.say(worker, report())
    job.mute |= {"n0.s0", "n0.s1"}
    assert job.core.status(job.now_s).protection == "protected"
    job.die("n0.w1")
    job.settle()
    status = job.core.status(job.now_s)
    assert status.protection == "partly"
    assert [(g.ranks, g.text) for g in status.coverage[0].gaps] == [
        ((0,), "no other rank holds the tensors of rank 0: rank 1 is being replaced")
    ]


def test_a_rank_is_replaced_beside_others_that_hold_the_same(job: FakeJob) -> None:
    for worker in job.ranks:
        job.say(worker, report())
    job.mute |= {"n0.s0"}
    job.die("n0.w1")
    job.settle()
    assert job.core.status(job.now_s).coverage[0].gaps == ()
