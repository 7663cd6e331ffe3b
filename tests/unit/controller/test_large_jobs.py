"""What a job costs grows with its size, and no faster: four times the ranks may not cost ten times as much."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest

from torchrelay.controller.config import ControllerConfig
from torchrelay.controller.core import Core
from torchrelay.protocol import messages as msg

SMALL, LARGE, MOST = 400, 1600, 10.0
ROUNDS = 3


class LargeJob:
    def __init__(self, size: int) -> None:
        self.size, self.now_s = size, 1.0
        self.core = Core(ControllerConfig("run", size, 1, "", "", "", "h", 1, adopted=True), time.time)
        for rank in range(size):
            info = msg.WorkerInfo(f"p{rank}:u.1", rank, 1, {"WORLD_SIZE": str(size)})
            self.core.attach(msg.AgentHello(f"p{rank}:u", -1, "10.0.0.1", (info,)), self.now_s)
        self.all_say(lambda rank: msg.Armed(rank, size, "gloo", ""))
        self.tick()
        self.all_say(lambda rank: msg.Report("train.py", 7, 4096, 100, 1, (), (), (), 5, True))
        self.all_say(lambda rank: msg.ReplicaCheck(3, {"w": "aa"}, ("w",)))
        self.tick()

    def all_say(self, report: Callable[[int], Any]) -> None:
        for rank in range(self.size):
            self.hear(rank, msg.FromWorker(f"p{rank}:u.1", report(rank)))

    def hear(self, rank: int, message: Any) -> None:
        self.now_s += 1.0 / self.size
        self.core.receive(f"p{rank}:u", message, self.now_s)
        self.core.tick_every_s(self.now_s)
        self.core.take()

    def progress(self) -> None:
        for rank in range(self.size):
            seen = msg.WorkerProgress(f"p{rank}:u.1", 6, 6, "body", False, 9, "R")
            self.hear(rank, msg.Progress((seen,)))

    def tick(self) -> None:
        self.now_s += 1.0
        self.core.tick(self.now_s)
        self.core.take()

    def status(self) -> None:
        assert len(self.core.status(self.now_s).ranks) == self.size


def fastest_s(work: Callable[[], None]) -> float:
    taken = []
    for _ in range(ROUNDS):
        began_s = time.thread_time()
        work()
        taken.append(time.thread_time() - began_s)
    return min(taken)


def test_what_a_job_costs_grows_with_its_size_and_no_faster() -> None:
    small, large = LargeJob(SMALL), LargeJob(LARGE)
    assert large.core.job.protection == "on"
    for name in ("progress", "tick", "status"):
        ratio = fastest_s(getattr(large, name)) / fastest_s(getattr(small, name))
        assert ratio < MOST, f"{name}: {ratio:.1f} times as much for {LARGE // SMALL} times the ranks"


@pytest.mark.parametrize("size", [10_000, 100_000])
def test_a_claim_costs_next_to_nothing_before_there_are_pods(size: int) -> None:
    core = Core(ControllerConfig("run", size, 1, "", "", "", "h", 1, adopted=True), time.time)
    info = msg.WorkerInfo("p0:u.1", 0, 1, {"WORLD_SIZE": str(size)})
    core.attach(msg.AgentHello("p0:u", -1, "10.0.0.1", (info,)), 1.0)
    core.receive("p0:u", msg.FromWorker("p0:u.1", msg.Armed(0, size, "gloo", "")), 1.0)
    assert fastest_s(lambda: core.status(2.0) and None) < 1.0
