from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest
from support.fake_job import FakeJob

from torchrelay.controller.decide.protection.buddies import choose_every
from torchrelay.protocol import events
from torchrelay.protocol import messages as msg
from torchrelay.protocol.journals.kept import COPIES_AS_NEEDED
from torchrelay.protocol.names import BEHIND_UPDATE, NO_RANK

RANKS = 2


def copy(rank: int, boundary: int, set_up: bytes = b"set-up") -> msg.KeptCopy:
    return msg.KeptCopy(rank, boundary, f"/shm/rank-{rank}", f"copy of {rank}@{boundary}".encode(), set_up, "layout")


def sharded(folder: Path, nnodes: int = 1, spares: int = 1) -> FakeJob:
    job = FakeJob(folder, RANKS, spares, nnodes=nnodes, config={"buddy_every": 3})
    job.train()
    for worker, rank in job.ranks.items():
        job.say(worker, msg.ReplicaCheck(4, {"shard": f"of {rank}"}))
    return job


@pytest.fixture
def job(tmp_path: Path) -> FakeJob:
    job = sharded(tmp_path)
    job.kept["n0"] = tuple(copy(rank, boundary) for rank in range(RANKS) for boundary in (0, 3))
    return job


def test_a_rank_that_nobody_can_stand_in_for_takes_all_back_to_their_copies(job: FakeJob) -> None:
    job.die("n0.w1")
    job.settle()
    (finished,) = job.told(events.MigrationFinished)
    assert (finished.kind, finished.outcome, finished.ranks) == ("rollback", "committed", (0, 1))
    assert finished.steps_redone == 3, "from boundary 3, with the one in flight, at boundary 5"
    assert job.core.job.holders == {0: "n0.r0", 1: "n0.s0"}
    plans = job.sent(msg.Plan)
    assert (plans["n0.r0"].action, plans["n0.r0"].target, plans["n0.r0"].kept) == ("enter", 3, "/shm/rank-0")
    assert (plans["n0.s0"].journal, plans["n0.s0"].ddp_layout) == (b"copy of 1@3", "layout")
    assert job.sent(msg.Assign)["n0.r0"].env["RANK"] == "0"
    assert "3 steps done again" in job.core.status(job.now_s).last_migration


def test_how_often_copies_are_made_that_nobody_asked_for_is_chosen_once_steps_are_timed_and_again_later(
    tmp_path: Path,
) -> None:
    job = FakeJob(tmp_path, RANKS, config={"buddy_every": COPIES_AS_NEEDED})
    job.boundary = 0
    job.train()
    chosen, then = {}, {}
    for boundary, step_s in ((1, 0.05), (2, 0.05), (4, 0.05), (7, 0.01), (16, 0.01), (32, 0.01)):
        job.now_s += step_s * (boundary - job.boundary)
        job.boundary = boundary
        job.progress()
        for worker, rank in job.ranks.items():
            job.say(worker, msg.ReplicaCheck(boundary, {"shard": f"of {rank}"}))
        (chosen[boundary],) = {order.every for order in job.sent(msg.KeepCopies).values()}
        then[boundary] = choose_every(0, job.core.job.clock.median_step_s)
    assert (chosen[1], chosen[2]) == (0, 0)
    assert chosen[7] == chosen[4] == then[4] < then[7]
    assert chosen[32] == then[32] > chosen[4], "the first steps took longer"


def test_nobody_is_told_of_copies_that_nobody_asked_for_before_contents_are_compared(tmp_path: Path) -> None:
    job = FakeJob(tmp_path, RANKS, config={"buddy_every": COPIES_AS_NEEDED})
    job.warm()
    for worker, rank in job.ranks.items():
        job.say(worker, msg.Armed(rank, RANKS, "gloo", "2.13"))
    job.progress()
    for boundary, told in ((0, 0), (1, RANKS)):
        for worker in job.ranks:
            assert job.sent(msg.KeepCopies) == {}
            job.say(worker, msg.ReplicaCheck(boundary, {"w": "the same"}))
        assert len(job.sent(msg.KeepCopies)) == told
    assert {order.on for order in job.sent(msg.KeepCopies).values()} == {False}


def test_copies_go_on_where_a_part_of_a_step_is_not_captured_though_every_rank_has_a_replica(tmp_path: Path) -> None:
    job = FakeJob(tmp_path, RANKS, config={"buddy_every": COPIES_AS_NEEDED})
    job.boundary = 0
    job.train()
    for boundary in (1, 2, 4):
        job.now_s += 0.05
        job.boundary = boundary
        job.progress()
        for worker in job.ranks:
            job.say(worker, msg.ReplicaCheck(boundary, {"w": "the same"}))
    assert {order.on for order in job.sent(msg.KeepCopies).values()} == {False}
    gap = msg.Gap("own-result", BEHIND_UPDATE, "scatter after the optimizer step")
    job.say(next(iter(job.ranks)), msg.Report("train.py", 30, 400, 900, 4, (gap.text,), (), (gap,), 5, True))
    kept = job.sent(msg.KeepCopies)
    assert set(kept) == set(job.ranks), "if one rank goes back, all do"
    assert {(order.on, order.every > 0) for order in kept.values()} == {(True, True)}


def test_the_spare_is_not_spent_on_a_survivor(job: FakeJob) -> None:
    job.die("n0.w1")
    job.settle()
    assert [o.rank for o in job.orders if isinstance(o, msg.StartWorker)] == [0]
    assert job.sent(msg.Assign)["n0.s0"].rank == 1


def test_a_joiner_with_another_set_up_than_the_copy_starts_over_too(job: FakeJob) -> None:
    job.kept["n0"] = tuple(copy(rank, 3, b"another set-up") for rank in range(RANKS))
    job.die("n0.w1")
    job.settle()
    assert sorted(job.core.job.holders.values()) == ["n0.r0", "n0.r1"]
    assert {a.set_up for w, a in job.sent(msg.Assign).items() if ".r" in w} == {b"another set-up"}


def test_without_copies_of_all_ranks_the_job_ends_with_both_reasons(job: FakeJob) -> None:
    job.kept["n0"] = (copy(0, 3),)
    job.die("n0.w1")
    job.settle()
    assert job.stop is not None
    assert "no rank that is left holds the same tensors as rank 1" in job.stop.reason
    assert "there is no whole copy of the state of rank 1 yet" in job.stop.reason


def test_a_process_that_cannot_be_started_leaves_the_job_to_the_spares(tmp_path: Path) -> None:
    job = sharded(tmp_path, spares=2)
    job.kept["n0"] = tuple(copy(rank, 3) for rank in range(RANKS))
    job.unstartable = {0}
    job.die("n0.w1")
    job.settle()
    assert job.core.job.holders == {0: "n0.s1", 1: "n0.s0"}


def test_without_a_spare_the_lost_rank_starts_over_in_its_place(tmp_path: Path) -> None:
    job = sharded(tmp_path, spares=0)
    job.kept["n0"] = tuple(copy(rank, 3) for rank in range(RANKS))
    job.die("n0.w1")
    job.settle()
    (finished,) = job.told(events.MigrationFinished)
    assert (finished.kind, finished.outcome) == ("rollback", "committed")
    assert sorted(job.core.job.holders.values()) == ["n0.r0", "n0.r1"]


def test_a_rank_whose_spare_could_not_take_it_over_starts_over_in_its_place(job: FakeJob) -> None:
    job.die("n0.w1")
    while "n0.s0" not in job.sent(msg.Plan):
        node, message = job.due.popleft()
        job.give(message, node)
    generation = job.sent(msg.Plan)["n0.s0"].generation
    job.say("n0.s0", msg.OrderFailed(generation, "Join", "MovedOnError: the others meet at boundary 3 now"))
    job.settle()
    (finished,) = job.told(events.MigrationFinished)
    assert (finished.kind, finished.outcome) == ("rollback", "committed")
    assert all(".r" in worker for worker in job.core.job.holders.values())


def replicated(folder: Path, *full: str) -> FakeJob:
    """All ranks hold the same and copy it, no process is started for a lost one, and nobody can write to `full`."""
    job = FakeJob(folder, RANKS, 0, config={"buddy_every": 3, "respawn_limit": 0})
    job.train()
    job.kept["n0"] = tuple(copy(rank, 3) for rank in range(RANKS))
    job.full += full
    return job


def test_where_what_all_hold_cannot_be_saved_all_go_back_to_their_copies(tmp_path: Path) -> None:
    job = replicated(tmp_path, str(tmp_path))
    job.die("n0.w1")
    job.settle()
    (finished,) = job.told(events.MigrationFinished)
    assert (finished.kind, finished.outcome, finished.steps_redone) == ("rollback", "committed", 3)
    assert sorted(job.core.job.holders.values()) == ["n0.r0", "n0.r1"]
    phases = [e.phase for e in job.told(events.PhaseChanged)]
    assert phases.index("checkpoint") < phases.index("transfer"), "the save was tried first"
    assert "cannot be written to any folder" in " ".join(e.text for e in job.told(events.Decision))


def test_what_can_be_saved_is_and_no_step_is_done_again(tmp_path: Path) -> None:
    job = replicated(tmp_path)
    job.die("n0.w1")
    job.settle()
    (fell,) = job.told(events.JobFell)
    assert fell.directory


def test_where_neither_a_save_nor_copies_are_there_the_job_ends_with_both_reasons(tmp_path: Path) -> None:
    job = replicated(tmp_path, str(tmp_path))
    job.kept.clear()
    job.die("n0.w1")
    job.settle()
    (fell,) = job.told(events.JobFell)
    assert not fell.directory
    assert "cannot be written to any folder" in fell.reason
    assert "there is no whole copy of the state of rank 0, 1 yet" in fell.reason


def test_nobody_goes_back_for_a_rank_that_is_lost_at_the_same_step_a_third_time(tmp_path: Path) -> None:
    job = sharded(tmp_path, spares=0)
    for _ in range(3):
        job.kept["n0"] = tuple(copy(rank, 3) for rank in range(RANKS))
        job.boundary = 5
        for worker in job.core.job.holders.values():
            job.say(worker, msg.ReplicaCheck(4, {"shard": f"of {worker}"}))
        job.progress()
        job.die(job.core.job.holders[1])
        job.settle()
    assert [e.outcome for e in job.told(events.MigrationFinished)] == ["committed", "committed", "abandoned"]
    (fell,) = job.told(events.JobFell)
    assert "rank 1 was lost at step 5 3 times" in fell.reason


def test_a_place_in_quarantine_is_not_taken_again(tmp_path: Path) -> None:
    job = sharded(tmp_path, spares=0)
    job.kept["n0"] = tuple(copy(rank, 3) for rank in range(RANKS))
    job.core.job.workers["n0.w1"].devices = ("GPU-1",)
    job.core.job.quarantine["GPU-1"] = "it has fallen off the bus"
    job.die("n0.w1")
    job.settle()
    assert job.stop is not None
    assert "no spare is left for rank 1; and rank 1 cannot start over: it has fallen off the bus" in job.stop.reason


def test_where_all_ranks_are_lost_the_furthest_step_that_was_seen_of_any_counts(job: FakeJob) -> None:
    job.dead.add("n0.w1")  # it says nothing any more, while the other one goes on
    job.boundary = 7
    job.progress()
    job.boundary = 5
    for worker in ("n0.w0", "n0.w1"):
        job.die(worker)
    job.settle()
    (finished,) = job.told(events.MigrationFinished)
    assert (finished.kind, finished.outcome, finished.ranks) == ("rollback", "committed", (0, 1))
    assert finished.steps_redone == 5, "from boundary 3, with the one in flight, at boundary 7"


def test_what_was_said_of_later_steps_is_forgotten(job: FakeJob) -> None:
    job.die("n0.w1")
    job.settle()
    assert {c.boundary for checks in job.core.job.checks.values() for c in checks} == {3}
    assert not any(journal.boundaries for journal in job.core.job.journals.values())


def test_a_loss_with_a_replica_is_no_reason_to_go_back(tmp_path: Path) -> None:
    job = FakeJob(tmp_path, 3, config={"buddy_every": 3})
    job.train()
    job.die("n0.w1")
    job.settle()
    (finished,) = job.told(events.MigrationFinished)
    assert finished.kind == "unplanned"


def test_ranks_are_told_to_stop_copying_once_each_has_a_replica(tmp_path: Path) -> None:
    job = FakeJob(tmp_path, 3, config={"buddy_every": 3})
    job.train()
    assert {order.on for order in job.sent(msg.KeepCopies).values()} == {False}
    assert set(job.sent(msg.KeepCopies)) == {"n0.w0", "n0.w1", "n0.w2"}


def test_a_copy_is_handed_to_the_buddy_on_the_other_node_and_the_report_knows(tmp_path: Path) -> None:
    job = sharded(tmp_path, nnodes=2)
    keep = job.sent(msg.KeepCopies)
    assert (keep["n0.w0"].buddy, keep["n0.w0"].buddy_host) == (1, "10.0.0.2")
    job.say("n1.w0", msg.CopyReady(3, "10.0.0.2", 9300, "token"))
    assert job.sent(msg.TakeCopy) == {"n0.w0": msg.TakeCopy(1, 3, "10.0.0.2", 9300, "token")}
    assert job.core.job.holder(1).copy_on == ""
    job.say("n0.w0", msg.CopyTaken(1, 3, 4096))
    assert job.core.job.holder(1).copy_on == "n0"


def test_a_copy_that_could_not_be_fetched_is_told(tmp_path: Path) -> None:
    job = sharded(tmp_path, nnodes=2)
    job.say("n0.w0", msg.CopyTaken(1, 3, 0, "ChannelClosedError: gone"))
    assert any("could not fetch the copy of rank 1 after step 3" in e.text for e in job.told(events.Log))
    assert job.core.job.holder(1).copy_on == ""


def elsewhere(folder: Path, boundaries: tuple[int, ...] = (3,), spares: int = 1, **config: Any) -> FakeJob:
    """Three nodes; rank 1's copies are on its own and on rank 2's, and the only spare is on rank 0's."""
    job = FakeJob(folder, 3, spares, nnodes=3, config={"buddy_every": 3, **config})
    job.train()
    for worker, rank in job.ranks.items():
        job.say(worker, msg.ReplicaCheck(4, {"shard": f"of {rank}"}))
    job.tick()  # from here on journals are copied
    for rank in (0, 2):
        job.kept[f"n{rank}"] = tuple(copy(rank, b) for b in boundaries)
    job.kept["n2"] += tuple(dataclasses.replace(copy(1, b), directory=f"/shm/buddy-of-1/{b}") for b in boundaries)
    return job


def lose_machine(job: FakeJob, node: str) -> None:
    job.silent.add(node)
    job.dead |= {worker for worker in job.ranks if worker.startswith(node)}
    job.core.lose(node, f"{node} is gone", job.now_s)
    job.tick()
    job.settle()


def test_a_rank_that_enters_where_no_copy_of_it_lies_is_given_it_by_its_buddy_s_process(tmp_path: Path) -> None:
    job = elsewhere(tmp_path)
    lose_machine(job, "n1")
    (finished,) = job.told(events.MigrationFinished)
    assert (finished.kind, finished.outcome) == ("rollback", "committed")
    assert job.core.job.holders == {0: "n0.r0", 1: "n0.s0", 2: "n2.r1"}
    ((giver, serve),) = job.sent(msg.Serve).items()
    assert (giver, serve.boundary, serve.kept, serve.peer_host) == ("n2.r1", 3, "/shm/buddy-of-1/3", "10.0.0.1")
    plans = job.sent(msg.Plan)
    assert (plans["n0.s0"].kept, plans["n0.s0"].token) == ("", serve.token)
    assert (plans["n0.s0"].donor_port, plans["n0.s0"].journal) == (9000, b"copy of 1@3")
    assert (plans["n2.r1"].kept, plans["n2.r1"].token) == ("/shm/rank-2", "")
    assert len(serve.token) == 64


def test_without_a_spare_a_rank_that_is_lost_with_its_machine_starts_over_on_another_one(tmp_path: Path) -> None:
    job = elsewhere(tmp_path, spares=0)
    lose_machine(job, "n1")
    (finished,) = job.told(events.MigrationFinished)
    assert (finished.kind, finished.outcome) == ("rollback", "committed")
    assert job.core.job.holder(1).node in ("n0", "n2")
    assert job.told(events.ProcessRespawned) == [], "it is no respawn, and counts for no limit"
    assert {plan.target for plan in job.sent(msg.Plan).values()} == {3}


def test_two_ranks_that_start_over_on_another_machine_share_no_gpu(tmp_path: Path) -> None:
    job = elsewhere(tmp_path, spares=0)
    for name, node in job.core.job.nodes.items():
        node.free_gpus = () if name == "n1" else (f"gpu of {name}",)
        for worker in job.core.job.workers.on(name):
            worker.devices = (f"own of {worker.worker}", "nvidia-driver")
    job.core.job.nodes["n1"].lost = "it is gone"
    respawns = job.core.driver.spares.respawns
    first = respawns.place(1)
    second = respawns.place(1, (first.in_place_of,))
    assert {first.in_place_of, second.in_place_of} == {"gpu of n0", "gpu of n2"}
    none = respawns.place(1, (first.in_place_of, second.in_place_of))
    assert none.node == ""
    assert "its machine is lost, and no other machine has a place for rank 1" in none.reason


def test_a_copy_that_cannot_be_given_is_not_counted_on_and_the_one_before_is_taken(tmp_path: Path) -> None:
    job = elsewhere(tmp_path, (0, 3))
    job.refuses_to_serve = {"/shm/buddy-of-1/3": "JournalError: the content of w is not what was copied"}
    lose_machine(job, "n1")
    (finished,) = job.told(events.MigrationFinished)
    assert (finished.outcome, finished.steps_redone) == ("committed", 6), (
        "from boundary 0, with the one in flight, at 5"
    )
    assert {plan.target for plan in job.sent(msg.Plan).values()} == {0}
    assert any("the copy of rank 1 on n2 is of no use" in e.text for e in job.told(events.Log))


def test_where_the_only_copy_cannot_be_given_the_job_ends_and_says_why(tmp_path: Path) -> None:
    job = elsewhere(tmp_path)
    job.refuses_to_serve = {"/shm/buddy-of-1/3": "JournalError: the content of w is not what was copied"}
    lose_machine(job, "n1")
    (over,) = job.told(events.JobFinished)
    assert "the copy of rank 1 on n2 is of no use: JournalError: the content of w" in over.reason
    assert "the copy of rank 1 is on no node any more" in over.reason
    assert job.sent(msg.Commit) == {}


def test_where_the_buddy_is_lost_too_the_job_ends_and_says_why(tmp_path: Path) -> None:
    job = elsewhere(tmp_path)
    job.kept["n2"] = (copy(2, 3),)
    lose_machine(job, "n1")
    (over,) = job.told(events.JobFinished)
    assert "no rank that is left holds the same tensors as rank 1" in over.reason
    assert "there is no whole copy of the state of rank 1 yet" in over.reason
    assert job.sent(msg.Commit) == {}


def test_a_survivor_s_own_copy_that_is_damaged_is_replaced_by_its_buddy_s(tmp_path: Path) -> None:
    job = elsewhere(tmp_path)
    job.kept["n0"] += (dataclasses.replace(copy(2, 3), directory="/shm/buddy-of-2/3"),)
    job.damaged_here = {"/shm/rank-2"}
    lose_machine(job, "n1")
    (finished,) = job.told(events.MigrationFinished)
    assert finished.outcome == "committed"
    assert {s.kept for s in job.sent(msg.Serve).values()} == {"/shm/buddy-of-1/3", "/shm/buddy-of-2/3"}


def test_in_pods_survivors_begin_anew_in_their_place_and_are_no_spares_for_others(tmp_path: Path) -> None:
    job = elsewhere(tmp_path, adopted=True)
    lose_machine(job, "n1")
    (finished,) = job.told(events.MigrationFinished)
    assert (finished.kind, finished.outcome) == ("rollback", "committed")
    assert job.core.job.holders == {0: "n0.a0", 1: "n0.s0", 2: "n2.a1"}
    fences = {o.worker: o.again for o in job.orders if isinstance(o, msg.Fence)}
    assert (fences["n0.w0"], fences["n2.w0"]) == (True, True)
    begins = job.sent(msg.Begin)
    assert (begins["n0.a0"].spare, begins["n2.a1"].spare) == (True, True), "parked until they have a rank"
    assert job.sent(msg.Serve)["n2.a1"].kept == "/shm/buddy-of-1/3"


def test_in_pods_what_began_anew_for_the_controller_before_is_a_spare_for_any_rank(tmp_path: Path) -> None:
    job = elsewhere(tmp_path, adopted=True)
    job.add_spare("n0.a9")
    job.give(msg.LateWorker("n0.a9", 0, 300))
    assert job.core.job.workers["n0.a9"].started_for == NO_RANK


def test_in_pods_a_process_that_cannot_begin_anew_leaves_its_rank_to_a_spare(tmp_path: Path) -> None:
    job = elsewhere(tmp_path, adopted=True)
    job.gone_for_good = {"n2.w0"}
    job.kept["n0"] += (dataclasses.replace(copy(2, 3), directory="/shm/buddy-of-2/3"),)
    job.kept["n0"] += (dataclasses.replace(copy(1, 3), directory="/shm/buddy-of-1/3"),)
    job.add_spare("n0.s1")
    lose_machine(job, "n1")
    assert job.core.job.holders == {0: "n0.a0", 1: "n0.s0", 2: "n0.s1"}
    assert job.sent(msg.Serve) == {}
    assert job.sent(msg.Plan)["n0.s1"].kept == "/shm/buddy-of-2/3"


def test_a_buddy_is_on_another_machine_where_pods_share_machines(tmp_path: Path) -> None:
    job = FakeJob(tmp_path, 3, nnodes=3, config={"buddy_every": 3})
    job.core.job.machines.update(n0="m0", n1="m0", n2="m1")
    job.train()
    for worker, rank in job.ranks.items():
        job.say(worker, msg.ReplicaCheck(4, {"shard": f"of {rank}"}))
    assert {w: o.buddy for w, o in job.sent(msg.KeepCopies).items()} == {"n0.w0": 2, "n1.w0": 2, "n2.w0": 0}


def test_a_set_up_that_no_journal_has_any_more_is_taken_from_the_copy(tmp_path: Path) -> None:
    job = elsewhere(tmp_path)
    job.without_journals = {"n1.w0"}
    lose_machine(job, "n1")
    (finished,) = job.told(events.MigrationFinished)
    assert (finished.kind, finished.outcome) == ("rollback", "committed")
    assert job.core.job.holders[1] == "n0.s0"
    assert {a.set_up for a in job.sent(msg.Assign).values()} == {b"set-up"}


def test_where_neither_journals_nor_copies_of_a_rank_are_left_no_spare_is_used_up(tmp_path: Path) -> None:
    job = elsewhere(tmp_path)
    job.without_journals = {"n1.w0"}
    job.kept["n2"] = (copy(2, 3),)
    lose_machine(job, "n1")
    (over,) = job.told(events.JobFinished)
    assert "no spare can take over rank 1: its journals are lost with it, and nobody has copies" in over.reason
    assert job.sent(msg.Assign) == {}
