from __future__ import annotations

from pathlib import Path

import pytest
from support.fake_job import FakeJob

from torchrelay.protocol import events
from torchrelay.protocol import messages as msg

RAISED = msg.ScriptFailed("ValueError", "no such file", 1, 5)


@pytest.fixture
def job(tmp_path: Path) -> FakeJob:
    job = FakeJob(tmp_path)
    job.train()
    return job


def test_a_script_that_fails_ends_the_job_with_its_code_when_it_has_ended(job: FakeJob) -> None:
    job.say("n0.w1", msg.ScriptFailed("SystemExit", "3", 3, 5))
    assert job.stop is None
    job.die("n0.w1", signal=0, exit_code=3)
    assert job.stop is not None
    assert (job.stop.exit_code, job.stop.reason) == (3, "the script failed on rank 1: SystemExit: 3")
    assert not job.told(events.MigrationStarted)


def test_peers_that_fail_as_a_consequence_do_not_change_the_reason(job: FakeJob) -> None:
    job.say("n0.w1", RAISED)
    job.say("n0.w0", msg.ScriptFailed("RuntimeError", "Connection closed by peer", 9, 5))
    job.die("n0.w0", signal=6)
    job.die("n0.w1", signal=0, exit_code=1)
    assert job.stop is not None
    assert job.stop.reason == "the script failed on rank 1: ValueError: no such file"
    assert not job.told(events.MigrationStarted)


@pytest.mark.parametrize("ours", [False, True])
def test_what_torchrelay_has_raised_is_not_the_scripts_doing(job: FakeJob, ours: bool) -> None:
    """So the job is started again, as after any other loss that nobody can take over."""
    job.say("n0.w1", msg.ScriptFailed("StateMismatchError", "it was written to", 1, 5, ours))
    job.die("n0.w1", signal=0, exit_code=1)
    (fell,) = job.told(events.JobFell)
    assert (fell.by_script, fell.exit_code) == (not ours, 1)
    assert ("torchrelay could not go on with rank 1: " in fell.reason) == ours
    assert job.stop is not None
    assert job.stop.exit_code == 1
    assert not job.told(events.MigrationStarted)


def test_a_failed_script_that_does_not_end_by_itself_is_not_waited_for_for_ever(job: FakeJob) -> None:
    job.say("n0.w1", RAISED)
    job.tick(job.config.policy.failure_grace_s + 0.1)
    assert job.stop is not None
    assert job.stop.exit_code == 1


def test_an_exit_code_without_a_word_is_the_scripts_own_doing(job: FakeJob) -> None:
    job.die("n0.w1", signal=0, exit_code=4)
    assert job.stop is not None
    assert job.stop.exit_code == 4
    assert "a spare would do the same" in job.stop.reason


def test_a_survivor_that_fails_while_it_stands_is_a_loss_not_the_scripts_fault(tmp_path: Path) -> None:
    job = FakeJob(tmp_path, spares=2)
    job.train()
    job.mute.add("n0.w2")
    job.die("n0.w1")
    job.settle()
    job.say("n0.w2", msg.ScriptFailed("RuntimeError", "connection reset", 1, 5))
    job.die("n0.w2", signal=0, exit_code=1)
    job.settle()
    assert job.stop is None
    assert job.core.job.holders == {0: "n0.w0", 1: "n0.s0", 2: "n0.s1"}


def test_after_commit_a_failing_script_is_the_scripts_fault_again(job: FakeJob) -> None:
    job.die("n0.w1")
    job.settle()
    job.say("n0.s0", RAISED)
    job.die("n0.s0", signal=0, exit_code=1)
    assert job.stop is not None
    assert job.stop.exit_code == 1


@pytest.mark.parametrize("armed", [0, 2])
def test_a_death_before_all_ranks_are_armed_ends_the_job(tmp_path: Path, armed: int) -> None:
    job = FakeJob(tmp_path)
    job.warm()
    for rank in range(armed):
        job.say(f"n0.w{rank}", msg.Armed(rank, 3, "gloo", "2"))
    job.die("n0.w1")
    assert job.stop is not None
    assert job.stop.exit_code == 137
    assert "cannot be replaced" in job.stop.reason


def test_a_death_in_the_first_step_waits_for_what_polling_has_not_shown_yet(tmp_path: Path) -> None:
    job = FakeJob(tmp_path)
    job.boundary = -1
    job.train()
    job.boundary = 0
    job.core.job.checks.clear()
    for worker in job.core.job.workers.values():
        worker.seen_boundary = -1
    for worker in ("n0.w0", "n0.w1", "n0.w2"):
        job.say(worker, msg.ReplicaCheck(0, {"weight": "aa"}, ("weight",)))
        job.core.job.workers[worker].seen_boundary = -1
    job.die("n0.w1")
    assert job.stop is None
    job.settle()
    job.tick()
    job.settle()
    assert job.stop is None
    assert job.core.job.holders[1] == "n0.s0"


def test_a_death_before_the_training_loop_ends_the_job_after_a_moment(tmp_path: Path) -> None:
    job = FakeJob(tmp_path)
    job.boundary = -1
    job.train()
    for worker in job.core.job.workers.values():
        worker.seen_boundary = -1
    job.die("n0.w1")
    job.tick(3.0)
    assert job.stop is not None
    assert job.stop.exit_code == 137
    assert "have not reached their training loop yet" in job.stop.reason


@pytest.mark.parametrize(
    ("report", "why"),
    [
        (msg.Disabled("Python 3.9"), "rank 2: Python 3.9"),
        (msg.Armed(2, 2, "gloo", "2"), "the script made a process group of 2, not 3"),
    ],
)
def test_one_rank_that_cannot_be_protected_leaves_all_unprotected(
    tmp_path: Path, report: msg.ShimReport, why: str
) -> None:
    job = FakeJob(tmp_path)
    for rank in range(2):
        job.say(f"n0.w{rank}", msg.Armed(rank, 3, "gloo", "2"))
    job.say("n0.w2", report)
    assert job.sent(msg.Protect) == {f"n0.w{r}": msg.Protect(False, why) for r in range(3)}
    job.progress()
    job.die("n0.w1")
    assert job.stop is not None
    assert job.stop.exit_code == 137


def test_a_parked_spare_that_dies_is_lost_and_nothing_else(job: FakeJob) -> None:
    job.die("n0.s0", signal=11)
    assert job.stop is None
    (log,) = job.told(events.Log)
    assert log == events.Log("warning", "spare n0.s0 is lost: was killed by SIGSEGV; none is left")
    assert job.core.status(job.now_s).spares_total == 0


def test_a_rank_killed_after_its_script_was_through_is_done(job: FakeJob) -> None:
    job.say("n0.w1", msg.Finishing(9))
    job.die("n0.w1")
    assert job.stop is None
    for worker in ("n0.w0", "n0.w2"):
        job.say(worker, msg.Finishing(9))
        job.die(worker, signal=0)
    assert job.stop is not None
    assert job.stop.exit_code == 0


def test_nobody_may_finish_while_somebodys_state_may_be_needed(job: FakeJob) -> None:
    job.say("n0.w0", msg.Finishing(9))
    job.say("n0.w1", msg.Finishing(9))
    assert not job.sent(msg.MayFinish)
    job.say("n0.w2", msg.Finishing(9))
    assert len(job.sent(msg.MayFinish)) == 3


def test_the_last_rank_that_runs_dies_while_the_others_are_through(job: FakeJob) -> None:
    job.say("n0.w0", msg.Finishing(5))
    job.say("n0.w2", msg.Finishing(5))
    job.die("n0.w1")
    job.settle()
    assert job.core.job.holders[1] == "n0.s0"
    assert not job.sent(msg.MayFinish)
    job.say("n0.s0", msg.Finishing(5))
    assert set(job.sent(msg.MayFinish)) == {"n0.w0", "n0.s0", "n0.w2"}


def test_a_rank_that_is_gone_for_good_cannot_take_part_in_new_communicators(job: FakeJob) -> None:
    job.die("n0.w0", signal=0)
    job.die("n0.w1")
    job.tick(3.0)
    assert job.stop is not None
    assert job.stop.exit_code == 137
    assert "rank 0 has ended already" in job.stop.reason


def test_an_unprotected_job_ends_when_all_ranks_have(tmp_path: Path) -> None:
    job = FakeJob(tmp_path)
    for rank in range(3):
        job.die(f"n0.w{rank}", signal=0)
    assert job.stop == msg.StopJob(0, 15, "all ranks are done")


def test_the_user_ends_the_job(job: FakeJob) -> None:
    job.core.user_requests.stop(2)
    job.tick()
    assert job.stop == msg.StopJob(130, 2, "stopped by SIGINT")
    job.die("n0.w1", signal=2)
    assert not job.told(events.MigrationStarted)


def test_an_agent_that_stays_away_ends_the_job_one_that_comes_back_does_not(job: FakeJob) -> None:
    hello = msg.AgentHello("n0", 0, "10.0.0.1", (msg.WorkerInfo("n0.w1", 1, 101),))
    job.core.detach("n0", job.now_s)
    job.tick(20.0)
    job.core.attach(hello, job.now_s)
    job.tick(20.0)
    assert job.stop is None
    job.core.detach("n0", job.now_s)
    job.tick(31.0)
    assert job.stop is not None
    assert "the agent of n0 has been away" in job.stop.reason


def test_a_worker_of_another_node_is_not_listened_to(job: FakeJob) -> None:
    job.core.receive("n7", msg.WorkerExited("n0.w1", 137, 9, False), job.now_s)
    job.tick()
    assert job.core.job.workers["n0.w1"].alive
    assert any("none of its workers" in log.text for log in job.told(events.Log))
