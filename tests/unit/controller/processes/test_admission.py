"""Processes that others have started come to a job that waits for them, and to one that trains already."""

from __future__ import annotations

import json
from typing import Any

import pytest

from torchrelay.controller.config import ControllerConfig
from torchrelay.controller.core import Core
from torchrelay.controller.decide.detection.silence import fenced_after_s
from torchrelay.controller.processes.admission import MISSING_S
from torchrelay.protocol import messages as msg
from torchrelay.protocol.names import NO_RANK

LAUNCH = {"RANK": "1", "WORLD_SIZE": "2"}


class World:
    """A job of two ranks whose pods are `a`, `b`, and a spare `s`."""

    def __init__(self, holders: dict[int, str] | None = None, **policy: object) -> None:
        config = ControllerConfig(
            run_id="r",
            nnodes=2,
            nproc_per_node=1,
            secret_file="",
            address_file="",
            jit_dir="/nowhere",
            master_addr="",
            master_port=1,
            **({"adopted": True} | policy),  # type: ignore[arg-type]  # of any of its fields
        )
        self.core = Core(config, lambda: 0.0)
        self.core.entrance.remember(holders or {})
        self.now_s = 100.0
        self.events: list[msg.JobEvent] = []

    def attach(self, node: str, *workers: msg.WorkerInfo, copies_of: dict[str, int] | None = None) -> list[Any]:
        hello = msg.AgentHello(node, -1, node, workers, copies_port=1, copies_token=b"t", copies_of=copies_of or {})
        self.core.attach(hello, self.now_s)
        return self.orders()

    def start(self, node: str, worker: str, rank: int) -> list[Any]:
        self.core.receive(node, msg.WorkerStarted(worker, rank, 1, LAUNCH), self.now_s)
        return self.orders()

    def say(self, node: str, worker: str, report: Any) -> list[Any]:
        self.core.receive(node, msg.FromWorker(worker, report), self.now_s)
        return self.orders()

    def end(self, node: str, worker: str) -> list[Any]:
        self.core.receive(node, msg.WorkerExited(worker, 137, 9, False), self.now_s)
        return self.orders()

    def tick(self, after_s: float = 0.0) -> list[Any]:
        self.now_s += after_s
        self.core.tick(self.now_s)
        return self.orders()

    def orders(self) -> list[Any]:
        orders, events = self.core.take()
        self.events += events
        return [getattr(order, "order", order) for _, order in orders]


def begins(orders: list[Any]) -> dict[str, bool]:
    return {o.worker: o.spare for o in orders if isinstance(o, msg.Begin)}


def trains(rank: int, node: str, generation: int = 3, in_force: int = 3) -> msg.WorkerInfo:
    return msg.WorkerInfo(f"{node}.1", rank, 1, LAUNCH, generation, rank != NO_RANK, in_force)


def test_ranks_and_spares_are_told_what_they_are() -> None:
    world = World()
    told = begins(world.attach("a", msg.WorkerInfo("a.1", 0, 1, LAUNCH)))
    told |= begins(world.attach("s", msg.WorkerInfo("s.1", NO_RANK, 1, LAUNCH)))
    told |= begins(world.attach("b") + world.start("b", "b.1", 1))
    assert told == {"a.1": False, "b.1": False, "s.1": True}
    assert world.core.job.holders == {0: "a.1", 1: "b.1"}


def test_nobody_is_told_twice() -> None:
    world = World()
    world.attach("a", msg.WorkerInfo("a.1", 0, 1, LAUNCH))
    assert begins(world.start("a", "a.1", 0) + world.attach("a", msg.WorkerInfo("a.1", 0, 1, LAUNCH))) == {}


def test_a_program_that_ends_before_it_has_a_process_group_makes_room_for_the_next() -> None:
    world = World()
    world.attach("a", msg.WorkerInfo("a.1", 0, 1, LAUNCH))
    world.end("a", "a.1")
    assert begins(world.start("a", "a.2", 0)) == {"a.2": False}
    assert world.core.ended is None


def test_a_process_that_is_started_again_for_a_rank_which_lives_is_a_spare() -> None:
    world = World()
    for rank, node in enumerate("ab"):
        world.attach(node, msg.WorkerInfo(f"{node}.1", rank, 1, LAUNCH))
        world.say(node, f"{node}.1", msg.Armed(rank, 2, "gloo", ""))
    assert world.core.job.protection == "on"
    assert begins(world.attach("c", msg.WorkerInfo("c.1", 1, 1, LAUNCH))) == {"c.1": True}


def test_a_new_controller_takes_over_what_trains_and_tells_nobody_to_begin() -> None:
    world = World({0: "a.1", 1: "b.1"})
    orders = world.attach("a", trains(0, "a")) + world.attach("b", trains(1, "b", 5)) + world.tick()
    assert begins(orders) == {}
    assert sum(isinstance(o, msg.TellAgain) for o in orders) == 2
    assert (world.core.job.generation, world.core.job.protection) == (5, "on")


def test_ranks_that_a_controller_had_no_time_to_tell_are_given_the_secret_that_the_others_have() -> None:
    """It went when one of them had been told; both connect their first gate now."""
    world, secret = World({0: "a.1", 1: "b.1"}), b"of the controller before".ljust(32)
    world.attach("a", msg.WorkerInfo("a.1", 0, 1, LAUNCH, 0, True, 0, secret))
    orders = world.attach("b", msg.WorkerInfo("b.1", 1, 1, LAUNCH, 0, False, 0))
    orders += world.say("b", "b.1", msg.Armed(1, 2, "gloo", ""))
    assert {o.gate_secret for o in orders if isinstance(o, msg.Protect)} == {secret}


def test_an_agent_tells_of_all_its_processes_once() -> None:
    world = World({0: "a.1", 1: "a.2"})
    orders = world.attach("a", trains(0, "a"), msg.WorkerInfo("a.2", 1, 1, LAUNCH, 0, True, 0)) + world.tick()
    assert [o for o in orders if isinstance(o, msg.TellAgain)] == [msg.TellAgain()]


def test_of_two_that_say_the_same_rank_the_one_that_is_written_down_has_it() -> None:
    world = World({0: "a.1", 1: "s.1"})
    world.attach("a", trains(0, "a"))
    world.attach("b", trains(1, "b"))
    assert world.core.job.protection == "pending"
    world.attach("s", trains(1, "s"))
    orders = world.tick(0.1)
    assert world.core.job.holders == {0: "a.1", 1: "s.1"}
    assert [o.worker for o in orders if isinstance(o, msg.Fence)] == ["b.1"]


def test_an_end_is_not_judged_before_all_are_there() -> None:
    world = World({0: "a.1", 1: "b.1"})
    world.attach("b", trains(1, "b"))
    world.end("b", "b.1")
    assert world.core.ended is None
    assert world.core.job.workers["b.1"].exited is None
    world.attach("a", trains(0, "a"))
    world.tick(0.1)
    assert world.core.job.workers["b.1"].exited is not None


def test_a_rank_that_never_comes_was_lost_while_nobody_was_there() -> None:
    world = World({0: "a.1", 1: "b.1"})
    world.attach("s", trains(NO_RANK, "s"))
    world.attach("a", trains(0, "a"))
    world.say("s", "s.1", msg.Warm(""))
    progress = msg.WorkerProgress("a.1", 7, 7, "body", True, 1, "S", 1.0)
    world.core.receive("a", msg.Progress((progress,)), world.now_s)
    world.tick(MISSING_S - 1.0)
    assert world.core.driver.migration is None
    world.tick(1.0)
    world.tick()
    assert world.core.driver.migration is not None
    assert world.core.driver.migration.state.rank == 1
    assert "while no controller was there" in world.core.driver.migration.state.reason
    assert [(e.name, json.loads(e.fields_json)["node"]) for e in world.events if e.name == "node_lost"] == [
        ("node_lost", "b")
    ]


def test_where_no_rank_has_come_all_could_train_elsewhere_until_their_lease_is_over() -> None:
    world = World({0: "a.1", 1: "b.1"}, lease_s=60.0, adopted=False, takes_over=True)
    world.attach("s", trains(NO_RANK, "s"))
    world.tick(60.0)
    assert "a" not in world.core.job.nodes
    world.tick(fenced_after_s(60.0) - 60.0)
    assert world.core.job.nodes["a"].lost == "not seen since this controller began"


def test_in_a_cluster_they_could_as_long_as_one_of_their_pods_is_there() -> None:
    world, pods = World({0: "a.1", 1: "b.1"}), {"b"}
    world.core.entrance.may_live = pods.__contains__
    world.attach("s", trains(NO_RANK, "s"))
    world.tick(10_000.0)
    assert "a" not in world.core.job.nodes
    pods.clear()
    world.tick(1.0)
    assert world.core.job.nodes["a"].lost == "not seen since this controller began"


@pytest.mark.parametrize(("copies_of", "asked"), [({"b.1": 6}, "a"), ({"b.1": 2}, "s"), ({}, "s")])
def test_the_journals_of_a_rank_that_never_comes_are_read_where_an_agent_says_that_copies_are(
    copies_of: dict[str, int], asked: str
) -> None:
    """Of several, where the newest are; where none says so, where they would be begun now."""
    world = World({0: "a.1", 1: "b.1"})
    world.attach("s", trains(NO_RANK, "s"), copies_of={"b.1": 3} if copies_of else None)
    world.attach("a", trains(0, "a"), copies_of=copies_of)
    world.say("s", "s.1", msg.Warm(""))
    progress = msg.WorkerProgress("a.1", 7, 7, "body", True, 1, "S", 1.0)
    world.core.receive("a", msg.Progress((progress,)), world.now_s)
    world.tick(MISSING_S)
    world.tick()
    assert world.core.job.node_with_journal("b.1") == asked


def test_a_process_of_before_without_anything_written_down_is_believed() -> None:
    world = World()
    world.attach("a", trains(0, "a"))
    world.attach("b", trains(1, "b"))
    assert world.core.job.holders == {0: "a.1", 1: "b.1"}


def running(**policy: bool) -> World:
    world = World(**policy)
    for rank, node in enumerate("ab"):
        world.attach(node, msg.WorkerInfo(f"{node}.1", rank, 1, LAUNCH))
        world.say(node, f"{node}.1", msg.Armed(rank, 2, "gloo", ""))
        progress = msg.WorkerProgress(f"{node}.1", 7, 7, "body", True, 1, "S")
        world.core.receive(node, msg.Progress((progress,)), world.now_s)
    world.attach("s", msg.WorkerInfo("s.1", NO_RANK, 1, LAUNCH))
    world.say("s", "s.1", msg.Warm(""))
    return world


def test_a_job_that_is_only_observed_is_told_that_it_is_not_protected() -> None:
    world = World(observe=True)
    world.attach("a", msg.WorkerInfo("a.1", 0, 1, LAUNCH))
    orders = world.attach("b", msg.WorkerInfo("b.1", 1, 1, LAUNCH)) + world.say("b", "b.1", msg.Armed(1, 2, "gloo", ""))
    assert [o.on for o in orders if isinstance(o, msg.Protect)] == [False, False]
    assert "observe" in world.core.job.protection_reason


def test_what_would_be_done_for_a_loss_is_told_where_nothing_is_done() -> None:
    world = running(observe=True)
    world.core.take()
    world.core.receive("b", msg.WorkerExited("b.1", 137, 9, False), world.now_s)
    verdicts = [e.fields_json for e in world.core.take()[1] if e.name == "health_verdict"]
    assert len(verdicts) == 1
    assert all(word in verdicts[0] for word in ('"replace"', '"observed"', "killed by SIGKILL", "observe"))
    assert world.core.driver.migration is None


def test_a_loss_is_replaced_by_default() -> None:
    world = running()
    world.end("b", "b.1")
    assert world.core.driver.migration is not None


def test_a_loss_ends_a_job_that_is_moved_by_plan_alone() -> None:
    world = running(planned_only=True)
    world.end("b", "b.1")
    world.tick(3.0)
    assert world.core.driver.migration is None
    assert world.core.ended is not None
    assert "planned-only" in world.core.ended.reason


def test_and_such_a_job_can_be_moved_by_plan() -> None:
    assert running(planned_only=True).core.user_requests.migrate(msg.MigrateRequest(1, "fan"), 100.0).accepted


def test_a_rank_that_does_not_come_is_not_lost_while_the_others_train() -> None:
    world = World({0: "a.1", 1: "b.1"})
    world.attach("s", trains(NO_RANK, "s"))
    world.say("s", "s.1", msg.Warm(""))
    world.attach("a", trains(0, "a"))
    for count in range(30):
        progress = msg.WorkerProgress("a.1", count, count, "body", True, count, "R")
        world.core.receive("a", msg.Progress((progress,)), world.now_s)
        world.tick(1.0)
    assert world.core.driver.migration is None
    assert world.core.job.holders == {0: "a.1"}
    world.attach("b", trains(1, "b"))
    world.tick(1.0)
    assert (world.core.job.protection, world.core.ended) == ("on", None)


def test_a_migration_that_is_in_force_for_some_is_finished() -> None:
    """Its controller ended between two Commits; what was written down is who had the rank before."""
    world = World({0: "a.1", 1: "b.1"})
    world.attach("b", trains(1, "b", 3, 3))
    world.attach("a", trains(0, "a", 4, 4))
    orders = world.attach("s", trains(1, "s", 4, -1)) + world.tick(0.1)
    assert world.core.job.holders == {0: "a.1", 1: "s.1"}
    assert [o for o in orders if isinstance(o, msg.Commit)] == [msg.Commit(4)]
    assert [o.worker for o in orders if isinstance(o, msg.Fence)] == ["b.1"]


def test_a_planned_move_that_is_in_force_for_nobody_is_taken_back() -> None:
    world = World({0: "a.1", 1: "b.1"})
    world.attach("a", trains(0, "a", 4, 3))
    world.attach("s", trains(1, "s", 4, -1))
    orders = world.attach("b", trains(1, "b", 4, 3)) + world.tick(0.1)
    assert world.core.job.holders == {0: "a.1", 1: "b.1"}
    assert [o.generation for o in orders if isinstance(o, msg.Abandon)] == [4, 4]
    assert [o.worker for o in orders if isinstance(o, msg.Fence)] == ["s.1"]
    assert world.core.job.generation == 4


def test_the_migration_of_a_rank_that_is_lost_begins_anew() -> None:
    world = World({0: "a.1", 1: "b.1"})
    world.attach("a", trains(0, "a", 4, 3))
    world.attach("b", trains(1, "b", 3, 3))
    for node in "ba":
        progress = msg.WorkerProgress(f"{node}.1", 7, 7, "body", True, 1, "S")
        world.core.receive(node, msg.Progress((progress,)), world.now_s)
    world.end("b", "b.1")
    orders = world.attach("s", trains(1, "s", 4, -1)) + world.tick(0.1) + world.tick(0.1)
    assert [o for o in orders if isinstance(o, msg.Abandon)] == []
    assert [o.worker for o in orders if isinstance(o, msg.Fence)] == ["s.1"]
    assert world.core.driver.migration is not None
    assert (world.core.driver.migration.state.rank, world.core.driver.migration.state.generation) == (1, 5)


def test_nothing_is_settled_where_all_is_well() -> None:
    world = World({0: "a.1", 1: "b.1"})
    orders = world.attach("a", trains(0, "a")) + world.attach("b", trains(1, "b")) + world.tick(0.1) + world.tick(20.0)
    assert [o for o in orders if isinstance(o, (msg.Abandon, msg.Commit, msg.Fence))] == []
