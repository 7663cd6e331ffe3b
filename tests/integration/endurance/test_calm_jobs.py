"""The agent's looks and the controller's core together, on virtual time: how little is done, and how soon it is noticed."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest
from support.fake_job import FakeJob

from torchrelay.agent.connections.cadence import Cadence
from torchrelay.agent.health.workers.vitals import Vitals
from torchrelay.controller.config import Policy
from torchrelay.protocol import events
from torchrelay.protocol import messages as msg
from torchrelay.protocol.journals.journal import ProgressRecord
from torchrelay.protocol.names import WorkerId

pytestmark = pytest.mark.core

STEP_S = 0.08
COUNTS_PER_STEP = 12
INSTANT_S = 0.01
STOPPED_S = Policy().stopped_s
LIMIT_S = Policy().hang_extra_s + 3 * STEP_S


class Calm:
    """Three ranks and a spare. `stuck`: a rank that stands still; its peers wait in the step that it does not finish."""

    def __init__(self, folder: Path) -> None:
        self.job = FakeJob(folder)
        self.job.train()
        self.vitals, self.cadence = Vitals(self._activity_of, lambda pid: 0.0), Cadence()
        self.start_s = self.now_s = self.look_s = self.tick_s = self.job.now_s
        self.stuck: int | None = None
        self.stuck_count = 0
        self.state, self.processor_share = "S", 0.0
        self.looks = self.ticks = self.tellings = self.questions = self._orders = 0

    @property
    def count(self) -> int:
        """What a healthy rank has counted."""
        return int((self.now_s - self.start_s) / STEP_S * COUNTS_PER_STEP)

    @property
    def boundary(self) -> int:
        return 5 + self.count // COUNTS_PER_STEP

    def get_stuck(self, rank: int, state: str = "S") -> None:
        self.stuck, self.stuck_count, self.state = rank, self.count, state

    def run(self, seconds: float) -> None:
        end_s = self.now_s + seconds
        while self.now_s < end_s:
            self.now_s = self.job.now_s = self.now_s + INSTANT_S
            if self.now_s >= self.look_s:
                self.look()
            if self.now_s >= self.tick_s:
                self.ticks += 1
                self.job.core.tick(self.now_s)
                self.tick_s = self.now_s + self.job.core.tick_every_s(self.now_s)
            self._obey()

    def run_until(self, kind: type, at_most_s: float) -> float:
        """How long it takes until the controller tells an event of this kind."""
        begun_s = self.now_s
        while not self.job.told(kind):
            assert self.now_s - begun_s < at_most_s, f"no {kind.__name__}"
            self.run(INSTANT_S)
        return self.now_s - begun_s

    def look(self, a_child_changed: bool = False) -> None:
        self.looks += 1
        workers = (*(f"n0.w{r}" for r in range(3)), "n0.s0")
        seen = tuple(
            self.vitals.see(WorkerId(w), i, self._record(i), self.now_s, a_child_changed) for i, w in enumerate(workers)
        )
        if self.cadence.is_to_be_told(seen, self.now_s):
            self.tellings += 1
            self.job.core.receive("n0", msg.Progress(seen), self.now_s)
            self.tick_s = min(self.tick_s, self.now_s + self.job.core.tick_every_s(self.now_s))
        self.look_s = self.now_s + self.cadence.pause_s(seen)

    def _obey(self) -> None:
        self.job._collect()
        for order in self.job.orders[self._orders :]:
            if isinstance(order, msg.LookClosely):
                self.cadence.closely = order.on
                self.look()
        self._orders = len(self.job.orders)

    def _record(self, number: int) -> ProgressRecord | None:
        if number == 3:
            return None
        count = self.count if self.stuck is None else min(self.count, self.stuck_count)
        waits = self.stuck is not None and number != self.stuck and self.count > self.stuck_count
        return ProgressRecord(0, 5 + count // COUNTS_PER_STEP, 0, "body", waits, count)

    def _activity_of(self, pid: int) -> tuple[str, float]:
        self.questions += pid != 3
        if pid != self.stuck:
            return "S", 0.0
        return self.state, int((self.now_s - self.start_s) * self.processor_share * 100) / 100


@pytest.fixture
def calm(tmp_path: Path) -> Calm:
    made = Calm(tmp_path)
    made.run(10.0)
    return made


def test_a_minute_of_healthy_training_costs_two_looks_a_second_and_one_message(calm: Calm) -> None:
    calm.looks = calm.ticks = calm.tellings = calm.questions = 0
    shown = len(calm.job.told(events.ProgressMade))
    calm.run(60.0)
    assert calm.looks <= 121
    assert calm.tellings <= 61
    assert calm.ticks <= 61
    assert calm.questions == 0
    assert 55 <= len(calm.job.told(events.ProgressMade)) - shown <= 61
    assert calm.job.told(events.ProgressMade)[-1].steps_per_s == pytest.approx(1 / STEP_S, rel=0.05)
    assert not calm.job.told(events.Suspected)


def test_what_status_shows_is_a_second_old_at_most(calm: Calm) -> None:
    for _ in range(200):
        calm.run(0.03)
        behind = calm.boundary - calm.job.core.status(calm.now_s).ranks[0].boundary
        assert 0 <= behind <= 1.1 / STEP_S + 1


@pytest.mark.parametrize("wait_s", [0.0, 0.13, 0.29, 0.47])
def test_a_stopped_rank_is_suspected_soon_after_its_stop(calm: Calm, wait_s: float) -> None:
    calm.run(wait_s)
    calm.get_stuck(1, "T")
    calm.look(a_child_changed=True)
    assert STOPPED_S <= calm.run_until(events.Suspected, 3.0) <= STOPPED_S + 0.1


@pytest.mark.parametrize("wait_s", [0.0, 0.13, 0.29, 0.47, 0.8])
def test_a_hang_is_suspected_at_its_limit(calm: Calm, wait_s: float) -> None:
    calm.run(wait_s)
    calm.get_stuck(1)
    took_s = calm.run_until(events.Suspected, 10.0)
    assert LIMIT_S - 0.05 <= took_s <= LIMIT_S + 0.65
    assert calm.job.told(events.Suspected)[0].rank == 1


@pytest.mark.parametrize(("state", "share"), [("R", 0.0), ("D", 0.0), ("S", 0.05), ("S", 0.02)])
def test_a_rank_that_works_is_not_suspected_while_its_peers_wait(calm: Calm, state: str, share: float) -> None:
    calm.processor_share = share
    calm.run(1.0)
    calm.get_stuck(1, state)
    calm.run(60.0)
    assert not calm.job.told(events.Suspected)


def test_a_rank_that_moves_again_before_its_limit_is_not_suspected(calm: Calm) -> None:
    for _ in range(4):
        calm.get_stuck(1)
        calm.run(LIMIT_S - 0.3)
        calm.stuck, calm.start_s = None, calm.now_s - calm.stuck_count * STEP_S / COUNTS_PER_STEP
        calm.run(0.6)
    assert not calm.job.told(events.Suspected)


@pytest.mark.parametrize("wait_s", [0.0, 0.3, 0.6, 0.9])
def test_a_planned_move_is_agreed_on_from_progress_of_that_moment(calm: Calm, wait_s: float) -> None:
    calm.run(wait_s)
    assert calm.job.core.user_requests.migrate(msg.MigrateRequest(1, "test"), calm.now_s).accepted
    for _ in itertools.takewhile(lambda _: not calm.job.sent(msg.QuiesceAt), range(100)):
        calm._obey()
        calm.job.core.receive("n0", calm.job.due.popleft()[1], calm.now_s)
    ahead = calm.job.sent(msg.QuiesceAt)["n0.w0"].boundary - calm.boundary
    assert ahead == 2 + -(-0.3 // STEP_S)
