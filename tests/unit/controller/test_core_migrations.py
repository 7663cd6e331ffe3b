from __future__ import annotations

import signal
from pathlib import Path

import pytest
from support.fake_job import FakeJob

from torchrelay.controller.checkpoints.checkpoint import read_checkpoint
from torchrelay.protocol import events
from torchrelay.protocol import messages as msg
from torchrelay.protocol.words.phases import DOWNTIME_ROWS

DETECTION_S = 5.5
"""What is added to three steps, in docs/transparency.md, and one tick."""


@pytest.fixture
def job(tmp_path: Path) -> FakeJob:
    job = FakeJob(tmp_path, spares=2)
    job.train()
    return job


def test_a_killed_rank_is_replaced_and_the_job_ends_well(job: FakeJob) -> None:
    job.die("n0.w1")
    job.settle()
    (finished,) = job.told(events.MigrationFinished)
    assert (finished.outcome, finished.kind, finished.rank, finished.spare) == ("committed", "unplanned", 1, "n0.s0")
    assert finished.steps_redone == 1
    assert finished.transferred_bytes == 4096
    assert set(finished.downtime_s) == set(DOWNTIME_ROWS)
    assert job.core.job.holders == {0: "n0.w0", 1: "n0.s0", 2: "n0.w2"}
    for worker in ("n0.w0", "n0.s0", "n0.w2"):
        job.say(worker, msg.Finishing(9))
    assert set(job.sent(msg.MayFinish)) == {"n0.w0", "n0.s0", "n0.w2"}
    for worker in ("n0.w0", "n0.s0", "n0.w2"):
        job.die(worker, signal=0)
    assert job.stop == msg.StopJob(0, 15, "all ranks are done")
    assert job.events[-1] == events.JobFinished(0, "all ranks are done")


def test_the_joiner_gets_rank_environment_journal_and_donor_of_the_lost_rank(job: FakeJob) -> None:
    job.die("n0.w1")
    job.settle()
    assign = job.sent(msg.Assign)["n0.s0"]
    assert (assign.rank, assign.env["RANK"], assign.env["LOCAL_RANK"], assign.env["WORLD_SIZE"]) == (1, "1", "1", "3")
    assert assign.set_up == b"set-up"
    serve, plan = job.sent(msg.Serve)["n0.w0"], job.sent(msg.Plan)["n0.s0"]
    assert (serve.peer_host, serve.token) == ("10.0.0.1", plan.token)
    assert len(plan.token) >= 32
    assert (plan.action, plan.target, plan.journal) == ("enter", 5, b"n0.w1@5")
    assert (plan.donor_host, plan.donor_port) == ("10.0.0.1", 9000)
    assert (plan.more_hosts, plan.more_ports) == (("10.0.0.1",), (9000,))  # rank 2 holds the same
    assert {w: p.action for w, p in job.sent(msg.Plan).items() if w != "n0.s0"} == {
        "n0.w0": "rewind",
        "n0.w2": "rewind",
    }


def test_the_operator_is_warned_of_donors_that_do_not_hold_the_same(job: FakeJob) -> None:
    job.differed = "large.model.weight"
    job.die("n0.w1")
    job.settle()
    (warning,) = (e.text for e in job.told(events.Log) if e.level == "warning")
    assert "ranks 0, 2 were taken to hold the same, and do not (large.model.weight)" in warning
    assert [e.outcome for e in job.told(events.MigrationFinished)] == ["committed"]


class SomeAtGate(FakeJob):
    """The first rank has passed the gate of step 5, the others still wait in it."""

    def _reports(self, worker: str, order: msg.ShimOrder) -> list[msg.ShimReport]:
        g, b = getattr(order, "generation", 0), self.boundary
        if isinstance(order, msg.Interrupt) and worker not in self.joining:
            passed, position = (b, "after") if worker == "n0.w0" else (b - 1, "gate")
            return [msg.Standing(g, b - 1, passed, position, "", "10.0.0.1", 7000)]
        if isinstance(order, msg.PassGate):
            return [msg.Standing(g, b - 1, b, "after", "", "10.0.0.1", 7000)]
        return super()._reports(worker, order)


@pytest.mark.parametrize("spares", [1, 0])
def test_nobody_gives_or_saves_tensors_that_lack_an_update_which_others_have_made(tmp_path: Path, spares: int) -> None:
    """Also for a checkpoint: what it holds is all of one boundary."""
    job = SomeAtGate(tmp_path, spares=spares)
    job.train()
    job.die("n0.w1")
    job.settle()
    assert set(job.sent(msg.PassGate)) == {"n0.w2"}
    orders = [type(order.order) for _, order in job.sent_to if isinstance(order, msg.ToWorker)]
    first = min(orders.index(kind) for kind in (msg.Serve, msg.SaveCheckpoint) if kind in orders)
    assert orders.index(msg.PassGate) < first
    decided = [d.text for d in job.told(events.Decision)]
    assert "rank 2 makes the update of step 5, as others have done" in decided


def test_each_migration_has_tokens_of_its_own(job: FakeJob) -> None:
    job.die("n0.w1")
    job.settle()
    first = job.sent(msg.Plan)["n0.s0"].token
    job.die("n0.s0")
    job.settle()
    second = job.sent(msg.Plan)["n0.s1"].token
    assert first != second
    assert [f.outcome for f in job.told(events.MigrationFinished)] == ["committed", "committed"]
    assert job.core.job.generation == 2


def test_rank_0_is_replaced_like_any_other(job: FakeJob) -> None:
    job.die("n0.w0")
    job.settle()
    assert job.core.job.holders[0] == "n0.s0"
    assert {(r.store_host, r.store_port) for r in job.sent(msg.Rebuild).values()} == {("10.0.0.1", 7000)}


def test_a_joiner_lost_before_it_wrote_a_journal_leaves_the_first_ones_valid(job: FakeJob) -> None:
    job.mute.add("n0.s0")
    job.die("n0.w1")
    job.settle()
    job.die("n0.s0")
    job.settle()
    assert job.core.job.holders[1] == "n0.s1"
    assert job.sent(msg.Plan)["n0.s1"].journal == b"n0.w1@5"


def test_two_ranks_that_die_together_move_together(tmp_path: Path) -> None:
    job = FakeJob(tmp_path, world_size=4, spares=2)
    job.train()
    job.die("n0.w1")
    job.die("n0.w2")
    job.settle()
    (finished,) = job.told(events.MigrationFinished)
    assert finished.ranks == (1, 2)
    assert job.core.job.holders == {0: "n0.w0", 1: "n0.s0", 2: "n0.s1", 3: "n0.w3"}
    assert set(job.sent(msg.Serve)) == {"n0.w0", "n0.w3"}


def test_a_planned_move_leaves_no_step_to_redo_and_fences_the_leaver(job: FakeJob) -> None:
    reply = job.core.user_requests.migrate(msg.MigrateRequest(2, "a new fan"), job.now_s)
    assert reply.accepted
    job.tick()
    job.settle()
    (finished,) = job.told(events.MigrationFinished)
    assert (finished.migration, finished.kind, finished.outcome) == (reply.migration, "planned", "committed")
    assert finished.spare == "n0.s0"
    assert finished.beside_s > 0
    assert finished.downtime_s["prepare"] == 0.0
    assert [o.worker for o in job.orders if isinstance(o, msg.Fence)] == ["n0.w2"]
    assert set(job.sent(msg.Serve)) == {"n0.w0", "n0.w1", "n0.w2"}  # the leaver itself, and who holds the same
    plan = job.sent(msg.Plan)["n0.s0"]
    assert (plan.donor_port, plan.more_hosts, plan.more_ports) == (9000, ("10.0.0.1", "10.0.0.1"), (9000, 9000))
    (started,) = job.told(events.MigrationStarted)
    assert started.reason == "a new fan"


def test_a_leaver_that_dies_meanwhile_makes_it_an_unplanned_migration(job: FakeJob) -> None:
    job.core.user_requests.migrate(msg.MigrateRequest(2, "a new fan"), job.now_s)
    job.tick()
    job.die("n0.w2")
    job.settle()
    (finished,) = job.told(events.MigrationFinished)
    assert (finished.kind, finished.outcome, finished.spare) == ("unplanned", "committed", "n0.s0")
    assert [s.kind for s in job.told(events.MigrationStarted)] == ["planned", "unplanned"]


def test_without_a_spare_the_job_ends_with_a_checkpoint_that_another_one_resumes_from(tmp_path: Path) -> None:
    job = FakeJob(tmp_path, spares=0)
    job.train()
    job.die("n0.w1")
    job.settle()
    (saved,) = job.told(events.CheckpointSaved)
    assert saved.directory == str(tmp_path / "run-step5")
    assert saved.resume_command == f"torchrelay run --resume {saved.directory} train.py"
    assert job.stop is not None
    assert job.stop.exit_code == 75
    assert saved.resume_command in job.stop.reason
    assert [w for w, s in job.sent(msg.SaveCheckpoint).items() if s.save_tensors] == ["n0.w0"]

    checkpoint = read_checkpoint(Path(saved.directory), 3)
    assert {r: p.journal for r, p in checkpoint.ranks.items()} == {r: f"n0.w{r}@5".encode() for r in range(3)}
    assert checkpoint.tensors == {0: 4096}
    assert checkpoint.tensors_of == {0: 0, 1: 0, 2: 0}

    resumed = FakeJob(Path(saved.directory), spares=1, checkpoint=checkpoint)
    resumed.warm()
    resumed.settle()
    (finished,) = resumed.told(events.MigrationFinished)
    assert (finished.kind, finished.outcome, finished.ranks) == ("resume", "committed", (0, 1, 2))
    plans = resumed.sent(msg.Plan)
    assert {p.journal for p in plans.values()} == {f"n0.w{r}@5".encode() for r in range(3)}
    assert {(p.directory, p.donor_host, p.target) for p in plans.values()} == {
        (f"{saved.directory}/rank-0-tensors", "", 5)
    }
    assert len(resumed.core.job.spares) == 1
    assert resumed.core.job.protection == "on"


def test_a_checkpoint_that_cannot_be_written_ends_the_job_with_the_lost_ranks_code(tmp_path: Path) -> None:
    (tmp_path / "run-step5").write_text("a file in the way")
    job = FakeJob(tmp_path, spares=0)
    job.train()
    job.die("n0.w1")
    job.settle()
    assert job.stop is not None
    assert job.stop.exit_code == 137
    assert "cannot be written" in job.stop.reason


def test_a_checkpoint_goes_into_the_next_folder_where_a_rank_cannot_write_and_nothing_is_left_in_the_first(
    tmp_path: Path,
) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    job = FakeJob(first, spares=0, config={"jit_dirs_more": (str(second),)})
    job.full = [str(first)]
    (first / "run-step5" / "rank-2-tensors").mkdir(parents=True)
    job.train()
    job.die("n0.w1")
    job.settle()
    (saved,) = job.told(events.CheckpointSaved)
    assert saved.directory == str(second / "run-step5")
    assert job.dead == {"n0.w1"}
    assert not (first / "run-step5").exists()
    assert read_checkpoint(Path(saved.directory), 3).tensors == {0: 4096}


def test_a_checkpoint_never_goes_into_a_whole_one(tmp_path: Path) -> None:
    for _ in range(2):
        job = FakeJob(tmp_path, spares=0)
        job.train()
        job.die("n0.w1")
        job.settle()
    assert sorted(p.name for p in tmp_path.iterdir()) == ["run-again1-step5", "run-step5"]


def test_where_no_folder_can_be_written_nobody_who_lives_is_ended_for_it(tmp_path: Path) -> None:
    job = FakeJob(tmp_path / "jit", spares=0)
    job.full = [str(tmp_path)]
    job.train()
    job.die("n0.w1")
    job.settle()
    assert job.stop is not None
    assert (job.stop.exit_code, job.stop.signal) == (137, signal.SIGTERM)
    assert f"cannot be written to any folder of --jit-dir: {tmp_path}/jit: OSError" in job.stop.reason
    (fell,) = job.told(events.JobFell)
    assert (fell.directory, "no spare is left" in fell.refused) == ("", True)
    assert job.dead == {"n0.w1"}


def test_without_a_replica_the_job_ends_with_the_reason(tmp_path: Path) -> None:
    job = FakeJob(tmp_path, spares=1)
    job.train()
    job.say("n0.w1", msg.ReplicaCheck(4, {"shard": "11"}))
    for worker in ("n0.w0", "n0.w2"):
        job.say(worker, msg.ReplicaCheck(4, {"shard": "22"}))
    job.die("n0.w1")
    job.settle()
    assert job.stop is not None
    assert job.stop.exit_code == 137
    assert "no rank that is left holds the same tensors" in job.stop.reason


def test_a_stopped_process_is_suspected_confirmed_and_replaced(job: FakeJob) -> None:
    job.states["n0.w1"] = "T"
    job.waiting = {"n0.w0", "n0.w2"}
    job.still = {"n0.w0", "n0.w1", "n0.w2"}
    job.tick(2.0)
    job.settle()
    (suspected,) = job.told(events.Suspected)
    assert suspected.rank == 1
    assert "stopped (state T)" in suspected.reason
    (finished,) = job.told(events.MigrationFinished)
    assert (finished.rank, finished.outcome) == (1, "committed")
    assert 0.4 < finished.downtime_s["detect"] < 1.0


def test_a_suspect_that_moves_again_is_left_alone(job: FakeJob) -> None:
    job.states["n0.w1"] = "T"
    job.waiting = {"n0.w0", "n0.w2"}
    while not job.told(events.Suspected):
        job.tick()
    job.states["n0.w1"] = "R"
    job.tick(1.0)
    assert [f.outcome for f in job.told(events.MigrationFinished)] == ["cleared"]
    assert not [o for o in job.orders if isinstance(o, msg.Fence)]
    assert job.core.driver.outcomes.done == 0


def test_a_survivor_stopped_in_the_middle_of_a_migration_is_found_without_witnesses(job: FakeJob) -> None:
    job.mute.add("n0.w2")
    job.states["n0.w2"] = "T"
    job.die("n0.w1")
    job.settle()
    job.tick(1.2)
    job.settle()
    assert job.core.job.holders == {0: "n0.w0", 1: "n0.s0", 2: "n0.s1"}


def test_reports_of_an_old_generation_are_ignored_and_logged_once(job: FakeJob) -> None:
    job.mute.add("n0.s0")
    job.die("n0.w1")
    job.settle()
    for _ in range(3):
        job.say("n0.w0", msg.Verified(0))
    logs = [e for e in job.told(events.Log) if "Verified" in e.text]
    assert len(logs) == 1


def test_interrupts_go_to_every_survivor_once_in_each_generation(job: FakeJob) -> None:
    job.die("n0.w1")
    job.settle()
    sent = [
        (o.worker, o.order.generation)
        for o in job.orders
        if isinstance(o, msg.ToWorker) and isinstance(o.order, msg.Interrupt)
    ]
    assert sorted(sent) == [("n0.w0", 1), ("n0.w2", 1)]


def test_a_rank_that_is_cut_off_while_all_wait_is_replaced_by_a_spare_on_another_machine(tmp_path: Path) -> None:
    job = FakeJob(tmp_path, 4, nnodes=2)
    job.infos.append(msg.WorkerInfo("n1.s0", -1, 300))
    job.spares.append("n1.s0")
    job.attach("n1")
    job.train()
    job.tick(1.0)
    job.waiting, job.still, job.cut_off = set(job.ranks), set(job.ranks), {"n0.w1"}
    job.tick(DETECTION_S)
    job.settle()
    (suspected,) = job.told(events.Suspected)
    assert suspected.rank == 1
    assert "rank 1's connections to ranks 0, 2, 3 have not been answered for" in suspected.reason
    (finished,) = job.told(events.MigrationFinished)
    assert (finished.outcome, finished.rank, finished.spare) == ("committed", 1, "n1.s0")


def test_nobody_is_replaced_for_a_transfer_that_takes_long(tmp_path: Path) -> None:
    job = FakeJob(tmp_path, 4, nnodes=2)
    job.train()
    job.tick(1.0)
    job.waiting, job.still = set(job.ranks), set(job.ranks)
    job.tick(60.0)
    assert job.told(events.Suspected) == []
    asked = [o for o in job.orders if isinstance(o, msg.ToWorker) and isinstance(o.order, msg.Explain)]
    assert 4 * 5 <= len(asked) <= 4 * 10, "ever more rarely, but as long as it takes"


class SomeStuck(FakeJob):
    """The ranks of these workers are in a message that they cannot send again, behind their update."""

    stuck: frozenset[str] = frozenset({"n0.w2"})

    def _reports(self, worker: str, order: msg.ShimOrder) -> list[msg.ShimReport]:
        if isinstance(order, msg.Interrupt) and worker not in self.joining:
            position = "once" if worker in self.stuck else "after"
            return [msg.Standing(order.generation, self.boundary - 1, self.boundary, position, "", "10.0.0.1", 7000)]
        return super()._reports(worker, order)


def test_a_rank_that_is_stuck_when_another_one_is_lost_is_replaced_too(tmp_path: Path) -> None:
    job = SomeStuck(tmp_path, world_size=4, spares=2)
    job.train()
    job.die("n0.w1")
    job.settle()
    (finished,) = job.told(events.MigrationFinished)
    assert (finished.outcome, finished.ranks) == ("committed", (1, 2))
    assert "n0.w2" in [order.worker for order in job.orders if isinstance(order, msg.Fence)]
    decided = [d.text for d in job.told(events.Decision)]
    assert any(
        "rank 2 was interrupted after optimizer step 5" in text and "it is replaced, too" in text for text in decided
    )


def test_nobody_is_replaced_where_all_are_stuck(tmp_path: Path) -> None:
    job = SomeStuck(tmp_path, world_size=3, spares=2)
    job.stuck = frozenset({"n0.w0", "n0.w2"})
    job.train()
    job.die("n0.w1")
    job.settle()
    assert [f.outcome for f in job.told(events.MigrationFinished)] == ["abandoned"]
    assert job.stuck.isdisjoint(order.worker for order in job.orders if isinstance(order, msg.Fence))
