"""Where thousands of agents share a controller each tells more rarely, and nothing is noticed later for it. On virtual time."""

from __future__ import annotations

import time

import pytest

from torchrelay.agent.connections.cadence import CALM_LOOK_S, Cadence
from torchrelay.controller.config import ControllerConfig, Policy
from torchrelay.controller.core import Core
from torchrelay.controller.pace import CALM_AGAIN_S
from torchrelay.controller.settling import ALERT_TICK_S
from torchrelay.protocol import messages as msg
from torchrelay.protocol.transport.telling import MOST_TELL_S, TELL_S, pace

RANKS = 4


class Pods:
    """A job of pods with an agent each. `waits`: ranks that wait for others since then, by when they last moved."""

    def __init__(self) -> None:
        self.core = Core(ControllerConfig("run", RANKS, 1, "", "", "", "h", 1, adopted=True), time.time)
        self.now_s, self.tick_s, self.count = 100.0, 0.0, 0
        self.cadences = {rank: Cadence() for rank in range(RANKS)}
        self.look_s = {rank: self.now_s + 0.1 * rank for rank in range(RANKS)}
        self.waits: dict[int, float] = {}
        self.tellings = 0
        self.orders: list[tuple[str, object]] = []
        for rank in range(RANKS):
            self.attach(rank)
        for report in (msg.Armed, msg.Report, msg.ReplicaCheck):
            for rank in range(RANKS):
                self.say(rank, report)
        self.run(3.0)

    @staticmethod
    def node(rank: int) -> str:
        return f"p{rank}:u"

    def attach(self, rank: int) -> None:
        info = msg.WorkerInfo(f"{self.node(rank)}.1", rank, 1, {"WORLD_SIZE": str(RANKS)})
        self.core.attach(msg.AgentHello(self.node(rank), -1, "10.0.0.1", (info,)), self.now_s)
        self.obey()

    def say(self, rank: int, kind: type) -> None:
        report = {
            msg.Armed: lambda: msg.Armed(rank, RANKS, "gloo", ""),
            msg.Report: lambda: msg.Report("train.py", 7, 4096, 100, 1, (), (), (), 5, True),
            msg.ReplicaCheck: lambda: msg.ReplicaCheck(3, {"w": "aa"}, ("w",)),
        }[kind]()
        self.core.receive(self.node(rank), msg.FromWorker(f"{self.node(rank)}.1", report), self.now_s)
        self.obey()

    def obey(self) -> None:
        orders, _ = self.core.take()
        self.orders += orders
        for node, order in orders:
            rank = int(node[1 : node.index(":")])
            if isinstance(order, msg.TellEvery) and rank in self.cadences:
                self.cadences[rank].take_pace(order.seconds)
                self.look_s[rank] = self.now_s

    def run(self, seconds: float) -> None:
        end_s = self.now_s + seconds
        while self.now_s < end_s - 1e-9:
            self.now_s += 0.05
            self.count += 1
            for rank, cadence in self.cadences.items():
                if self.now_s >= self.look_s[rank]:
                    self.look_s[rank] = self.now_s + CALM_LOOK_S
                    since_s = self.waits.get(rank, self.now_s)
                    seen = msg.WorkerProgress(
                        f"{self.node(rank)}.1", 9, 9, "body", rank in self.waits, self.count, "S", self.now_s - since_s
                    )
                    if cadence.is_to_be_told([seen], self.now_s):
                        self.tellings += 1
                        self.core.receive(self.node(rank), msg.Progress((seen,)), self.now_s)
                        self.obey()
            if self.now_s >= self.tick_s:
                self.core.tick(self.now_s)
                self.obey()
            self.tick_s = min(self.tick_s if self.tick_s > self.now_s else 1e9, self.now_s + self.every_s)

    @property
    def every_s(self) -> float:
        return self.core.tick_every_s(self.now_s)

    @property
    def told(self) -> set[float]:
        """What agents were asked for since the last look here."""
        found = {order.seconds for _, order in self.orders if isinstance(order, msg.TellEvery)}
        self.orders.clear()
        return found


@pytest.fixture
def pods() -> Pods:
    pods = Pods()
    assert pods.core.job.protection == "on"
    pods.core.pace.wish(4.0, pods.now_s)
    pods.obey()
    assert pods.told == {4.0}
    return pods


def test_few_agents_tell_each_second_and_thousands_so_that_their_number_does_not_count() -> None:
    assert pace(1) == pace(1000) == TELL_S
    assert 8000 / pace(8000) == 2000
    assert pace(1_000_000) == MOST_TELL_S
    assert pace(2000, jobs=1000) == 3 * pace(2000), "a look at each job by the clock costs, too"


def test_agents_of_ranks_that_move_tell_as_often_as_they_are_asked(pods: Pods) -> None:
    pods.run(8.0)
    pods.tellings = 0
    pods.run(40.0)
    assert pods.tellings == pytest.approx(RANKS * 10, abs=RANKS)
    assert pods.every_s == 4.0, "that nothing is heard for so long is as agreed, and no reason to look at the clock"
    assert pods.told == set()


def test_once_a_rank_stands_still_all_tell_often_until_all_is_well_again(pods: Pods) -> None:
    pods.run(8.0)
    pods.waits = {0: pods.now_s}
    pods.run(3.5)
    assert pods.told == {TELL_S}
    assert pods.every_s == ALERT_TICK_S
    pods.waits.clear()
    pods.run(CALM_AGAIN_S - 1.0)
    assert pods.told == set()
    pods.run(4.0)
    assert pods.told == {4.0}


@pytest.mark.parametrize("later_s", [0.0, 1.3, 2.6, 3.9])
def test_a_machine_that_is_gone_is_given_up_as_soon_as_ever(pods: Pods, later_s: float) -> None:
    pods.run(8.0 + later_s)
    del pods.cadences[3]
    pods.waits = dict.fromkeys((0, 1, 2), pods.now_s)
    pods.run(Policy().node_silent_s + 2 * ALERT_TICK_S)
    assert pods.core.job.nodes[pods.node(3)].lost


@pytest.mark.parametrize("later_s", [0.0, 1.3, 2.6, 3.9])
def test_an_agent_that_was_silent_as_agreed_has_time_to_answer(pods: Pods, later_s: float) -> None:
    """Its last word is up to four seconds old when others come to stand; from then on it is late by seconds."""
    pods.run(8.0 + later_s)
    late = pods.cadences.pop(3)
    pods.run(2.0)
    pods.waits = dict.fromkeys((0, 1, 2), pods.now_s)
    pods.run(5.5)
    assert not pods.core.job.nodes[pods.node(3)].lost
    pods.cadences[3] = late
    pods.run(5.0)
    assert not pods.core.job.nodes[pods.node(3)].lost


def test_who_comes_back_learns_the_pace(pods: Pods) -> None:
    pods.attach(2)
    assert pods.told == {4.0}


def test_a_word_of_progress_that_is_no_news_asks_for_nothing_more(pods: Pods) -> None:
    """There may be thousands a second: what they add up to is looked at with the clock."""
    moved = msg.WorkerProgress(f"{pods.node(0)}.1", 10, 10, "body", False, 1000, "S")
    stands = msg.WorkerProgress(f"{pods.node(0)}.1", 10, 10, "body", False, 1000, "S", 1.5)
    assert not pods.core.receive(pods.node(0), msg.Progress((moved,)), pods.now_s)
    assert pods.core.receive(pods.node(0), msg.Progress((stands,)), pods.now_s)
    assert not pods.core.receive(pods.node(0), msg.Progress((stands,)), pods.now_s)
