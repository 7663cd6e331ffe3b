"""Spares are kept at the number that the job began with."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from support.fake_job import FakeJob

from torchrelay.controller.decide.replacement.refill import (
    IDLE_S,
    MOST_UNUSED,
    PING_EVERY_S,
    SILENT_FOR_GOOD_S,
    STOPPED_S,
    WARM_S,
)
from torchrelay.protocol import events
from torchrelay.protocol import messages as msg
from torchrelay.protocol.names import NO_RANK


def made(folder: Path, spares: int = 1, config: dict[str, Any] | None = None, **more: Any) -> FakeJob:
    job = FakeJob(folder, spares=spares, config={"refill": True, **(config or {})}, **more)
    job.train()
    return job


def asked(job: FakeJob) -> list[tuple[str, str]]:
    """Machine and place of each new spare."""
    pairs = [(node, o) for node, o in job.sent_to if isinstance(o, msg.StartWorker) and o.rank == NO_RANK]
    assert all(o.idle for _, o in pairs)
    return [(node, o.in_place_of) for node, o in pairs]


def dropped(job: FakeJob) -> list[str]:
    return [f"{e.worker}: {e.reason}" for e in job.told(events.SpareDropped)]


def test_after_a_migration_a_spare_is_made_in_the_place_of_the_leaver(tmp_path: Path) -> None:
    job = made(tmp_path)
    job.die("n0.w1")
    job.settle()
    assert job.core.job.holders[1] == "n0.s0"
    assert asked(job) == [("n0", "n0.w1")]
    assert [w.worker for w in job.core.job.spares] == ["n0.s1"]
    job.boundary += 1
    job.progress()
    job.die("n0.w2")
    job.settle()
    assert job.core.job.holders[2] == "n0.s1"
    assert asked(job) == [("n0", "n0.w1"), ("n0", "n0.w2")]


def test_none_is_made_while_a_migration_runs(tmp_path: Path) -> None:
    job = made(tmp_path)
    job.mute.add("n0.s0")
    job.die("n0.w1")
    job.settle()
    job.tick(3.0)
    assert job.core.driver.migration is not None
    assert asked(job) == []
    assert job.core.status(job.now_s).spares_reason == "a migration is under way"


def test_status_and_events_say_how_many_there_are_and_why_not_more(tmp_path: Path) -> None:
    job = made(tmp_path, spares=2)
    job.cold = True
    job.die("n0.w1")
    job.settle()
    status = job.core.status(job.now_s)
    assert (status.spares_wanted, status.spares_warm, status.spares_making, status.spares_reason) == (2, 1, 1, "")
    job.core.job.quarantine["n0"] = "its cooling has failed"
    job.die("n0.s1")
    job.tick(3.0)
    status = job.core.status(job.now_s)
    assert (status.spares_warm, status.spares_making) == (0, 0)
    assert status.spares_reason == "no place is free for one: n0: its cooling has failed"
    assert job.told(events.SparesChanged)[-1].reason == status.spares_reason
    (spare,) = job.told(events.SpareMade)
    assert (spare.worker, spare.node, spare.in_place_of) == ("n0.s2", "n0", "n0.w1")


def test_without_refill_status_says_so(tmp_path: Path) -> None:
    job = made(tmp_path, config={"refill": False})
    assert job.core.status(job.now_s).spares_reason == ""
    job.die("n0.w1")
    job.settle()
    job.tick(2.0)
    assert asked(job) == []
    assert job.core.status(job.now_s).spares_reason == "new ones are not made (--no-refill)"


def test_a_spare_that_dies_is_replaced(tmp_path: Path) -> None:
    job = made(tmp_path)
    job.die("n0.s0")
    job.tick(3.0)
    job.settle()
    assert dropped(job) == ["n0.s0: it has ended by itself"]
    assert asked(job) == [("n0", "n0.s0")]


def test_spares_that_come_to_nothing_are_replaced_so_many_times_an_hour(tmp_path: Path) -> None:
    job = made(tmp_path)
    job.unstartable.add(NO_RANK)
    job.die("n0.s0")
    for _ in range(40):
        job.tick(10.0)
        job.settle()
    assert len(dropped(job)) == MOST_UNUSED
    assert "6 spares came to nothing within the hour" in job.core.status(job.now_s).spares_reason


def test_one_that_does_not_become_ready_is_let_run_and_then_replaced(tmp_path: Path) -> None:
    job = made(tmp_path)
    job.cold = True
    job.die("n0.s0")
    job.tick(3.0)
    job.settle()
    job.tick(IDLE_S + 1)
    assert [o.worker for o in job.orders if isinstance(o, msg.RaisePriority)] == ["n0.s1"]
    assert dropped(job) == ["n0.s0: it has ended by itself"]
    job.tick(WARM_S + 5)
    job.settle()
    assert dropped(job)[1].startswith("n0.s1: it was not ready after 30")
    assert asked(job) == [("n0", "n0.s0"), ("n0", "n0.s1")]


def test_one_whose_link_is_silent_is_replaced(tmp_path: Path) -> None:
    job = made(tmp_path)
    job.tick(PING_EVERY_S + 1)
    job.settle()
    job.mute.add("n0.s0")
    job.tick(PING_EVERY_S + SILENT_FOR_GOOD_S + 2)
    job.settle()
    job.tick(4.0)
    job.settle()
    assert dropped(job)[0].startswith("n0.s0: it has not answered for 4")
    assert [w.worker for w in job.core.job.spares] == ["n0.s1"]


def test_what_was_not_heard_while_the_controller_did_not_run_is_no_silence(tmp_path: Path) -> None:
    job = made(tmp_path)
    job.tick(PING_EVERY_S + 1)
    job.now_s += 10 * SILENT_FOR_GOOD_S
    job.core.tick(job.now_s)
    job.settle()
    job.tick(1.0)
    assert dropped(job) == []


def test_a_stopped_one_is_replaced(tmp_path: Path) -> None:
    job = made(tmp_path)
    job.states["n0.s0"] = "T"
    job.tick(STOPPED_S + 1)
    job.settle()
    assert dropped(job)[0].startswith("n0.s0: it has been stopped for")


def test_a_stopped_one_is_not_ready_and_its_device_goes_to_a_rank_whose_own_is_bad(tmp_path: Path) -> None:
    job = made(tmp_path, config={"respawn_limit": 3})
    with_gpus(job)
    job.states["n0.s0"] = "T"
    job.tick(1.0)
    assert (job.core._parts.judge.known().spares_ready, dropped(job)) == (0, [])
    job.core.job.quarantine["GPU-n0.w1"] = "it fell off the bus"
    job.die("n0.w1")
    job.settle()
    assert dropped(job) == ["n0.s0: it is stopped, and rank 1 needs its place"]
    assert [(o.rank, o.in_place_of) for o in job.orders if isinstance(o, msg.StartWorker) and o.rank != NO_RANK] == [
        (1, "n0.s0")
    ]
    assert job.core.job.holders[1] == "n0.r0"
    assert job.told(events.JobFell) == []


def test_a_stopped_one_is_left_alone_where_the_rank_s_own_place_is_well(tmp_path: Path) -> None:
    job = made(tmp_path, config={"respawn_limit": 3})
    with_gpus(job)
    job.states["n0.s0"] = "T"
    job.tick(1.0)
    job.die("n0.w1")
    job.settle()
    assert job.core.job.holders[1] == "n0.r0"
    assert dropped(job) == []


def test_ranks_that_wait_for_a_spare_let_it_run_as_any_other(tmp_path: Path) -> None:
    job = made(tmp_path)
    job.cold = True
    job.die("n0.w1")
    job.settle()
    job.boundary += 1
    job.progress()
    job.die("n0.w2")
    job.settle()
    assert [o.worker for o in job.orders if isinstance(o, msg.RaisePriority)] == ["n0.s1"]
    job.say("n0.s1", msg.Warm("2.13"))
    job.settle()
    assert job.core.job.holders[2] == "n0.s1"


def test_a_failed_rehearsal_is_heard_again_from_another_spare(tmp_path: Path) -> None:
    job = made(tmp_path)
    pool = job.core.pool
    assert pool.doubt("n0.s0", 1, "'x' differs", job.now_s)
    job.settle()
    job.tick(3.0)
    job.settle()
    assert asked(job) == [("n0", "n0.s0")]
    assert not pool.doubt("n0.s1", 1, "'x' differs", job.now_s)
    assert dropped(job) == ["n0.s0: its rehearsal of rank 1 has failed: 'x' differs"]


def test_the_spares_of_a_lost_machine_are_made_where_a_place_is_free(tmp_path: Path) -> None:
    job = made(tmp_path, world_size=4, nnodes=2, spares=2)
    job.core.job.nodes["n1"].spares = 1
    assert job.core.pool.wanted == 3
    job.tick(1.0)
    assert asked(job) == []
    assert job.core.status(job.now_s).spares_reason == "no place is free for one"


def test_fifty_losses_in_a_row_find_a_spare_each(tmp_path: Path) -> None:
    job = made(tmp_path)
    for round_ in range(50):
        job.boundary += 1
        job.progress()
        job.die(job.core.job.holders[round_ % 3])
        job.settle()
    assert len(job.told(events.MigrationFinished)) == 50
    assert {e.outcome for e in job.told(events.MigrationFinished)} == {"committed"}
    assert len(asked(job)) == 50
    assert len(job.core.job.spares) == 1
    assert job.stop is None


def more(job: FakeJob, count: int, node: str = "") -> msg.AddSparesReply:
    reply = job.core.user_requests.add_spares(msg.AddSparesRequest(count, node, "alice"), job.now_s)
    job.tick(1.0)
    job.settle()
    return reply


def test_more_spares_are_made_when_somebody_asks_and_kept_from_then_on(tmp_path: Path) -> None:
    job = made(tmp_path)
    reply = more(job, 2)
    assert (reply.accepted, reply.wanted) == (True, 3)
    assert job.told(events.SparesAsked) == [events.SparesAsked(2, "", 3, "alice")]
    assert asked(job) == [("n0", ""), ("n0", "")]
    status = job.core.status(job.now_s)
    assert [(s.worker, s.state) for s in status.spares] == [(f"n0.s{i}", "ready") for i in range(3)]
    assert (status.spares_wanted, status.spares_warm, status.spares_reason) == (3, 3, "")
    job.die("n0.s2")
    job.tick(3.0)
    job.settle()
    assert asked(job)[-1] == ("n0", "n0.s2")


def test_a_job_that_began_without_spares_is_given_one(tmp_path: Path) -> None:
    job = made(tmp_path, spares=0)
    assert more(job, 1).accepted
    assert [w.worker for w in job.core.job.spares] == ["n0.s0"]


def test_one_for_which_there_is_no_memory_is_not_tried_again(tmp_path: Path) -> None:
    job = made(tmp_path)
    job.unstartable.add(NO_RANK)
    assert more(job, 2).accepted
    assert len(asked(job)) == 1
    assert dropped(job) == ["n0.s1: it could not be started: no memory; 2 that were asked for on n0 are not made"]
    assert job.core.status(job.now_s).spares_wanted == 1
    for _ in range(5):
        job.tick(10.0)
    assert len(asked(job)) == 1


def test_where_each_gpu_has_a_process_there_is_no_place_for_more(tmp_path: Path) -> None:
    job = made(tmp_path)
    for number, worker in enumerate(job.core.job.workers.values()):
        worker.devices = (f"GPU-{number}-driver",)
    reply = more(job, 1)
    assert not reply.accepted
    assert reply.message == "no further one has a place (n0: each of its GPUs has a process)"
    assert asked(job) == []


def with_gpus(job: FakeJob, *free: str) -> None:
    """Each process has one, and some are free."""
    devices = {w: f"nvidia-driver GPU-{w}" for w in (*job.ranks, *job.spares)}
    job.give(msg.HealthSources({"nvidia": "ok"}, devices, free))


def test_a_spare_is_made_on_a_gpu_that_nobody_has_used_where_the_leaver_s_is_bad(tmp_path: Path) -> None:
    job = made(tmp_path)
    with_gpus(job, "GPU-bad", "GPU-well")
    job.core.job.quarantine |= {"GPU-n0.w1": "it has uncorrectable errors", "GPU-bad": "it fell off the bus"}
    job.die("n0.w1")
    job.settle()
    assert job.core.job.holders[1] == "n0.s0"
    assert asked(job) == [("n0", "GPU-well")]


def test_as_many_more_are_made_as_gpus_are_free(tmp_path: Path) -> None:
    job = made(tmp_path)
    with_gpus(job, "GPU-a", "GPU-b")
    assert (
        more(job, 3).message
        == "only 2 more have a place (n0: 2 of its GPUs are free, and 0 of them for spares that are missing)"
    )
    assert more(job, 2).accepted
    job.tick(1.0)
    job.settle()
    assert sorted(asked(job)) == [("n0", "GPU-a"), ("n0", "GPU-b")]
    status = job.core.status(job.now_s)
    assert (status.spares_wanted, status.spares_warm) == (3, 3)


def test_one_that_is_asked_for_on_a_machine_is_made_there_though_another_one_has_a_free_gpu_too(tmp_path: Path) -> None:
    job = made(tmp_path, spares=0, world_size=4, nnodes=2)
    for node in ("n0", "n1"):
        devices = {w: f"nvidia-driver GPU-{w}" for w in job.ranks if w.startswith(node)}
        job.give(msg.HealthSources({"nvidia": "ok"}, devices, (f"GPU-of-{node}",)), node)
    assert more(job, 1, "n1").accepted
    job.tick(1.0)
    job.settle()
    assert asked(job) == [("n1", "GPU-of-n1")]


def test_more_are_refused_where_none_would_be_made(tmp_path: Path) -> None:
    assert more(made(tmp_path, config={"refill": False}), 1).message == "new ones are not made (--no-refill)"
    job = made(tmp_path)
    assert more(job, 1, "n7").message == "there is no node n7; the job runs on n0"
    job.say("n0.w1", msg.Finishing(5))
    assert more(job, 1).message == "ranks are at their end"


def test_an_agent_that_comes_back_has_the_number_that_was_asked_for(tmp_path: Path) -> None:
    job = made(tmp_path)
    more(job, 1)
    assert job.core.job.nodes["n0"].spares == 2
    (order,) = [o for o in job.orders if isinstance(o, msg.StartWorker)]
    assert order.more
