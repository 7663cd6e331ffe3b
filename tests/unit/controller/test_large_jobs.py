"""What a job costs grows with its size, and no faster."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest
from support.counting import counted_lines

from torchrelay.controller.config import ControllerConfig
from torchrelay.controller.core import Core
from torchrelay.controller.health.stragglers import MINIMUM_STEPS
from torchrelay.controller.settling import SETTLE_S_PER_PROCESS, SMALL_JOB, UNSETTLED_FACTOR
from torchrelay.protocol import messages as msg

SMALL, LARGE, MOST_LINES, MOST = 300, 1200, 5.0, 10.0
ROUNDS = 3
MOST_LOOKS = 8.0
"""At its whole, for a second in which each of its ranks says something: the words themselves cost some too."""


class LargeJob:
    def __init__(self, size: int) -> None:
        self.size, self.now_s, self.step = size, 1.0, 5
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
        if self.core.receive(f"p{rank}:u", message, self.now_s):
            self.core.tick_every_s(self.now_s)
            self.core.take()

    def progress(self) -> None:
        self.step += 1
        for rank in range(self.size):
            seen = msg.WorkerProgress(f"p{rank}:u.1", self.step, self.step, "body", False, 9, "R")
            self.hear(rank, msg.Progress((seen,)))

    def slow_ones(self) -> None:
        """After as many steps as it takes to tell who is slow."""
        for _ in range(2):
            self.step += MINIMUM_STEPS
            self.progress()
            self.tick()

    def tick(self) -> None:
        self.now_s += 1.0
        self.core.tick(self.now_s)
        self.core.take()

    def status(self) -> None:
        assert len(self.core.status(self.now_s).ranks) == self.size

    def summary(self) -> None:
        self.now_s += 3600.0
        assert sum(self.core.summary(self.now_s).states.values()) == self.size

    def stand(self) -> None:
        """Rank 1 is lost, once, and all others stand."""
        if self.core.driver.migration is None:
            self.hear(1, msg.WorkerExited("p1:u.1", 137, 9, False))
            assert self.core.driver.migration is not None
        generation = self.core.job.generation
        for rank in range(self.size):
            if rank != 1:
                standing = msg.Standing(generation, 5, 5, "body", "", "10.0.0.1", 7000)
                self.hear(rank, msg.FromWorker(f"p{rank}:u.1", standing))

    def taken_over(self) -> None:
        """By a controller that is new to it."""
        core = Core(ControllerConfig("run", self.size, 1, "", "", "", "h", 1, adopted=True), time.time)
        core.entrance.remember({rank: f"p{rank}:u.1" for rank in range(self.size)})
        for rank in range(self.size):
            info = msg.WorkerInfo(f"p{rank}:u.1", rank, 1, {"WORLD_SIZE": str(self.size)}, 0, True, 0)
            core.attach(msg.AgentHello(f"p{rank}:u", -1, "10.0.0.1", (info,)), self.now_s)
            core.take()
        core.tick(self.now_s + 20.0)
        assert len(core.job.holders) == self.size


def fastest_s(work: Callable[[], None]) -> float:
    taken = []
    for _ in range(ROUNDS):
        began_s = time.thread_time()
        work()
        taken.append(time.thread_time() - began_s)
    return min(taken)


def lines_of(work: Callable[[], None]) -> int:
    with counted_lines() as lines:
        work()
    return lines.count


LOOKS = ("progress", "slow_ones", "tick", "status", "summary", "taken_over", "stand")


def test_what_a_job_costs_grows_with_its_size_and_no_faster() -> None:
    small, large = LargeJob(SMALL), LargeJob(LARGE)
    assert large.core.job.protection == "on"
    grows = {n: round(lines_of(getattr(large, n)) / lines_of(getattr(small, n)), 2) for n in LOOKS}
    assert max(grows.values()) < MOST_LINES, f"times the lines for {LARGE // SMALL} times the ranks: {grows}"


def test_nor_does_the_time_that_loops_of_c_take() -> None:
    """What `x in a_list`, a copy of a list or a comparison of long ones cost is in no line of Python."""
    small, large = LargeJob(SMALL), LargeJob(LARGE)
    grows = {n: round(fastest_s(getattr(large, n)) / fastest_s(getattr(small, n)), 1) for n in LOOKS}
    assert max(grows.values()) < MOST, f"times the time for {LARGE // SMALL} times the ranks: {grows}"


def test_words_of_all_ranks_within_a_second_cost_a_few_looks_at_the_whole_job() -> None:
    large = LargeJob(LARGE)
    look = lines_of(large.status)
    words = lines_of(lambda: large.all_say(lambda rank: msg.Report("train.py", 8, 4096, 100, 1, (), (), (), 5, True)))
    assert words / look < MOST_LOOKS


def test_while_words_alone_wait_to_be_settled_the_clock_of_a_large_job_is_looked_at_more_rarely() -> None:
    large = LargeJob(LARGE)
    rest_s = (len(large.core.job.workers) - SMALL_JOB) * SETTLE_S_PER_PROCESS
    for rank in range(2):  # the second one within the rest behind the first
        large.hear(rank, msg.FromWorker(f"p{rank}:u.1", msg.Armed(rank, LARGE, "gloo", "")))
    assert large.core.tick_every_s(large.now_s) == pytest.approx(UNSETTLED_FACTOR * rest_s)


@pytest.mark.parametrize("size", [10_000, 100_000])
def test_a_claim_costs_next_to_nothing_before_there_are_pods(size: int) -> None:
    core = Core(ControllerConfig("run", size, 1, "", "", "", "h", 1, adopted=True), time.time)
    info = msg.WorkerInfo("p0:u.1", 0, 1, {"WORLD_SIZE": str(size)})
    core.attach(msg.AgentHello("p0:u", -1, "10.0.0.1", (info,)), 1.0)
    core.receive("p0:u", msg.FromWorker("p0:u.1", msg.Armed(0, size, "gloo", "")), 1.0)
    assert fastest_s(lambda: core.status(2.0) and None) < 1.0
