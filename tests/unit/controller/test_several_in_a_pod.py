"""Pods with two processes each: who takes a rank over, what is refused, and how such a job begins again."""

from __future__ import annotations

from typing import Any

import pytest

from torchrelay.controller.config import ControllerConfig
from torchrelay.controller.core import Core
from torchrelay.controller.migration import events as m
from torchrelay.controller.picture.worker import Worker
from torchrelay.controller.restart.job_restart import assign_ranks, launch_of
from torchrelay.protocol import messages as msg
from torchrelay.protocol.health import kinds as k
from torchrelay.protocol.health.policy_file import default_policy
from torchrelay.protocol.names import NO_RANK


def launch(rank: int, here: int = 2, world_size: int = 4) -> dict[str, str]:
    numbers = {"RANK": rank, "LOCAL_RANK": rank % here, "LOCAL_WORLD_SIZE": here, "WORLD_SIZE": world_size}
    return {**{name: str(n) for name, n in numbers.items()}, "TORCHELASTIC_RUN_ID": "job"}


def spare(node: str, local_rank: int, here: int = 2) -> msg.WorkerInfo:
    return msg.WorkerInfo(f"{node}.{local_rank + 1}", NO_RANK, 1, launch(local_rank, here, here))


class World:
    """Pods `a`, with ranks 0 and 1, and `b`, with 2 and 3."""

    def __init__(self) -> None:
        config = ControllerConfig("r", 2, 2, "", "", "/nowhere", "", 1, adopted=True)
        self.core, self.now_s = Core(config, lambda: 0.0, None, default_policy()), 100.0

    def attach(self, node: str, *infos: msg.WorkerInfo) -> None:
        hello = msg.AgentHello(node, -1, node, infos, copies_port=1, copies_token=b"t")
        self.core.attach(hello, self.now_s)
        for info in infos:
            if info.rank == NO_RANK:
                self.say(info.worker, msg.Warm(""))

    def say(self, worker: str, report: Any) -> None:
        self.core.receive(worker.partition(".")[0], msg.FromWorker(worker, report), self.now_s)

    def train(self) -> None:
        for node, first in (("a", 0), ("b", 2)):
            self.attach(node, *(msg.WorkerInfo(f"{node}.{n + 1}", first + n, 1, launch(first + n)) for n in range(2)))
        for rank in range(4):
            worker = self.core.job.holders[rank]
            self.say(worker, msg.Armed(rank, 4, "gloo", ""))
            self.say(worker, msg.ReplicaCheck(3, {"weight": "aa"}, ("weight",)))
            progress = msg.WorkerProgress(worker, 7, 7, "body", True, 1, "S")
            self.core.receive(worker.partition(".")[0], msg.Progress((progress,)), self.now_s)
            self.core.job.journal(rank).set_up = b"s"

    def end(self, worker: str) -> None:
        self.core.receive(worker.partition(".")[0], msg.WorkerExited(worker, 137, 9, False), self.now_s)

    def chosen(self, rank: int) -> str:
        """Who takes the rank over."""
        answer = self.core.driver.spares.choose(self.core.driver.kind, rank, 1, self.now_s)
        return answer.worker if isinstance(answer, m.SpareChosen) else ""


def test_a_spare_takes_over_ranks_with_its_own_local_rank_alone() -> None:
    w = World()
    w.train()
    assert w.core.job.protection == "on"
    w.attach("s", spare("s", 0), spare("s", 1))
    assert [w.chosen(rank) for rank in (3, 1, 2)] == ["s.2", "", "s.1"]


def test_a_pod_that_is_lost_is_taken_over_by_one_pod() -> None:
    w = World()
    w.train()
    w.attach("s", spare("s", 0), spare("s", 1))
    w.attach("t", spare("t", 0), spare("t", 1))
    assert [w.chosen(rank) for rank in (0, 1)] == ["s.1", "s.2"]
    assert [w.chosen(rank) for rank in (3, 2)] == ["t.2", "t.1"]


def test_pods_that_nobody_lives_in_are_kept_whole() -> None:
    w = World()
    w.train()
    w.attach("a0", spare("a0", 0), spare("a0", 1))
    w.core.receive("b", msg.WorkerStarted("b.3", NO_RANK, 1, launch(2)), w.now_s)
    w.say("b.3", msg.Warm(""))
    assert w.chosen(0) == "b.3"  # beside ranks 2 and 3, and not in `a0`, which comes first by name


def test_where_no_spare_has_the_local_rank_the_move_is_refused_in_words() -> None:
    w = World()
    w.train()
    w.attach("s", spare("s", 0))
    reply = w.core.user_requests.migrate(msg.MigrateRequest(3, "fan"), w.now_s)
    assert not reply.accepted
    assert "none of the 1 spare processes has the local rank 1" in reply.message
    assert w.core.user_requests.migrate(msg.MigrateRequest(2, "fan"), w.now_s).accepted


def test_a_pod_that_is_made_brings_a_spare_for_each_local_rank() -> None:
    w = World()
    w.train()
    job = w.core.job
    job.spares_wanted = 1
    assert [job.spares_to_come(rank) for rank in range(4)] == [1, 1, 1, 1]
    w.attach("s", spare("s", 0))
    assert [job.spares_to_come(rank) for rank in range(4)] == [0, 1, 0, 1]
    job.spares_wanted, job.starting_again = 0, {"a", "b"}
    w.end("a.2")
    assert [job.spares_to_come(rank) for rank in range(2)] == [0, 1]


@pytest.mark.parametrize("here", [1, 4])
def test_a_spare_pod_of_another_size_is_of_no_use(here: int) -> None:
    w = World()
    w.train()
    w.attach("s", *(spare("s", n, here) for n in range(here)))
    assert w.core.job.spares == []


def test_a_job_with_a_rank_that_does_not_fit_is_not_protected_and_says_why() -> None:
    w = World()
    w.attach("a", *(msg.WorkerInfo(f"a.{n + 1}", n, 1, launch(n)) for n in range(2)))
    w.attach("b", msg.WorkerInfo("b.1", 2, 1, launch(2)))
    w.attach("c", msg.WorkerInfo("c.1", 3, 1, launch(3, here=1)))
    w.core.tick(w.now_s)
    assert w.core.job.protection == "off"
    assert "rank 3: its pod has 1 training processes" in w.core.job.protection_reason


def test_a_failed_script_is_told_that_it_may_fail_unless_its_rank_is_replaced() -> None:
    failed = msg.ScriptFailed("RuntimeError", "CUDA error", 1, 7)
    for is_blamed in (False, True):
        w = World()
        w.train()
        w.attach("s", spare("s", 0), spare("s", 1))
        w.core.take()
        if is_blamed:
            w.core.receive("b", msg.HealthSources({"nvidia": "ok"}, {"b.2": "GPU-1"}), w.now_s)
            w.core.receive("b", msg.HealthSignals((msg.HealthSignal(k.XID, "GPU-1", code=79),)), w.now_s)
        w.say("b.2", failed)
        orders = [getattr(o, "order", o) for node, o in w.core.take()[0] if node == "b"]
        assert any(isinstance(o, msg.MayFinish) for o in orders) is not is_blamed
        assert any(isinstance(o, msg.Fence) for o in orders) is is_blamed


def parked(worker: str, local_rank: int, home: int = NO_RANK) -> Worker:
    return Worker(worker, worker.partition(".")[0], 1, NO_RANK, warm=True, home_rank=home, local_rank=local_rank)


def test_ranks_that_belong_together_begin_again_in_one_pod() -> None:
    half, whole = [parked("a.1", 0), parked("c.2", 1)], [parked("b.1", 1), parked("b.2", 0)]
    chosen = assign_ranks([half[0], *whole, half[1]], 4, 2)
    assert {rank: w.worker for rank, w in chosen.items()} == {0: "b.2", 1: "b.1", 2: "a.1", 3: "c.2"}


def test_who_was_made_for_a_rank_gets_it() -> None:
    chosen = assign_ranks([parked("a.1", 0, 1), parked("b.1", 0), parked("c.1", 0, 0)], 3, 1)
    assert {rank: w.worker for rank, w in chosen.items()} == {0: "c.1", 1: "a.1", 2: "b.1"}


def test_what_a_rank_was_told_is_made_of_another_one_s() -> None:
    made = launch_of({0: launch(0)}, 3)
    assert {n: made[n] for n in ("RANK", "LOCAL_RANK", "GROUP_RANK", "ROLE_RANK")} == {
        "RANK": "3",
        "LOCAL_RANK": "1",
        "GROUP_RANK": "1",
        "ROLE_RANK": "3",
    }
    assert launch_of({0: {"RANK": "0", "X": "y"}}, 1) == {"RANK": "1", "X": "y"}
