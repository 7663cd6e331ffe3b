"""What the agent concludes from records and from the kernel, on virtual time."""

from __future__ import annotations

import dataclasses

import pytest

from torchrelay.agent.health.workers.vitals import Vitals
from torchrelay.protocol.journals.journal import ProgressRecord
from torchrelay.protocol.messages import WorkerProgress
from torchrelay.protocol.names import WorkerId
from torchrelay.protocol.transport.telling import STILL_S

W0, PID = WorkerId("n0.w0"), 100
BODY = ProgressRecord(0, 12, 12, "body", False, 99)


class Kernel:
    """`asked` counts questions."""

    def __init__(self) -> None:
        self.state, self.processor_s, self.asked = "S", 0.0, 0
        self.descendants_s, self.asked_of_descendants = 0.0, 0

    def activity_of(self, pid: int) -> tuple[str, float]:
        assert pid == PID
        self.asked += 1
        return self.state, self.processor_s

    def descendants_of(self, pid: int) -> float:
        assert pid == PID
        self.asked_of_descendants += 1
        return self.descendants_s


@pytest.fixture
def kernel() -> Kernel:
    return Kernel()


@pytest.fixture
def vitals(kernel: Kernel) -> Vitals:
    return Vitals(kernel.activity_of, kernel.descendants_of)


def moving(count: int) -> ProgressRecord:
    return dataclasses.replace(BODY, count=count)


def looks(vitals: Vitals, record: ProgressRecord, from_s: float, to_s: float, every_s: float = 0.5) -> WorkerProgress:
    """The last of several looks at a record that stands still."""
    seen = vitals.see(W0, PID, record, from_s)
    for i in range(1, round((to_s - from_s) / every_s) + 1):
        seen = vitals.see(W0, PID, record, from_s + i * every_s)
    return seen


def test_before_the_first_record_a_worker_sets_up(vitals: Vitals) -> None:
    assert vitals.see(W0, PID, None, 10.0) == WorkerProgress(W0, -1, 0, "set-up", False, 0, "S")


def test_whoever_moves_is_at_work_and_the_kernel_is_not_asked(vitals: Vitals, kernel: Kernel) -> None:
    vitals.see(W0, PID, moving(0), 10.0)
    assert kernel.asked == 1
    for i in range(1, 20):
        seen = vitals.see(W0, PID, moving(i), 10.0 + i)
        assert (seen.process_state, seen.still_s, seen.idle_s) == ("R", 0.0, 0.0)
    assert kernel.asked == 1


def test_a_stop_is_seen_even_of_one_that_has_just_moved(vitals: Vitals, kernel: Kernel) -> None:
    vitals.see(W0, PID, moving(0), 10.0)
    kernel.state = "T"
    assert vitals.see(W0, PID, moving(1), 10.1, ask_kernel=True).process_state == "T"


def test_ages_grow_while_nothing_happens(vitals: Vitals) -> None:
    seen = looks(vitals, BODY, 10.0, 18.0)
    assert (seen.still_s, seen.idle_s, seen.process_state) == (8.0, 8.0, "S")
    assert vitals.see(W0, PID, moving(100), 18.5).still_s == 0.0


@pytest.mark.parametrize("state", ["R", "D"])
def test_who_computes_or_is_at_the_disk_is_not_idle(vitals: Vitals, kernel: Kernel, state: str) -> None:
    looks(vitals, BODY, 10.0, 14.0)
    kernel.state = state
    seen = vitals.see(W0, PID, BODY, 14.5)
    assert (seen.still_s, seen.idle_s) == (4.5, 0.0)


@pytest.mark.parametrize("every_s", [0.05, 0.5])
@pytest.mark.parametrize(("share", "is_at_work"), [(0.05, True), (0.02, True), (0.005, False)])
def test_processor_time_shows_work_that_no_look_meets(
    vitals: Vitals, kernel: Kernel, every_s: float, share: float, is_at_work: bool
) -> None:
    for i in range(round(8.0 / every_s) + 1):
        kernel.processor_s = int(i * every_s * share * 100) / 100  # the kernel counts in ticks
        seen = vitals.see(W0, PID, BODY, 10.0 + i * every_s)
    assert (seen.idle_s <= 2.0) == is_at_work


def test_a_spare_is_asked_about_now_and_then(vitals: Vitals, kernel: Kernel) -> None:
    for i in range(101):
        vitals.see(W0, PID, None, 10.0 + i * 0.1)
    assert 8 <= kernel.asked <= 11


def test_who_waits_and_moves_is_asked_about_now_and_then(vitals: Vitals, kernel: Kernel) -> None:
    for i in range(101):
        vitals.see(W0, PID, dataclasses.replace(BODY, waiting=True, count=i // 5), 10.0 + i * 0.1)
    assert kernel.asked <= 11


def test_who_waits_and_has_not_moved_for_a_second_is_asked_about_at_each_look(vitals: Vitals, kernel: Kernel) -> None:
    """It may run in circles in a backward, which counts as waiting as a whole."""
    waits = dataclasses.replace(BODY, waiting=True)
    kernel.state = "R"
    for i in range(101):
        seen = vitals.see(W0, PID, waits, 10.0 + i * 0.1)
        assert seen.still_s < STILL_S or seen.idle_s == 0.0


def test_what_it_computed_before_it_stood_still_is_no_sign_of_life(vitals: Vitals, kernel: Kernel) -> None:
    for i in range(10):
        kernel.processor_s = float(i)
        vitals.see(W0, PID, moving(i), 10.0 + i)
    seen = looks(vitals, moving(9), 19.5, 24.0)
    assert seen.idle_s == seen.still_s == pytest.approx(5.0)


def test_one_that_computes_on_is_at_work_after_a_window(vitals: Vitals, kernel: Kernel) -> None:
    for i in range(10):
        vitals.see(W0, PID, moving(i), 10.0 + i)
    for i in range(10):
        kernel.processor_s += 0.4
        seen = vitals.see(W0, PID, moving(9), 19.5 + i * 0.5)
    assert seen.idle_s <= 0.5


@pytest.mark.parametrize(("share", "is_idle"), [(0.5, False), (0.05, True)])
def test_who_waits_for_processes_of_its_own_that_compute_is_not_idle(
    vitals: Vitals, kernel: Kernel, share: float, is_idle: bool
) -> None:
    """The workers of a data loader need longer for a batch than all the others' do; what only logs needs little."""
    seen = vitals.see(W0, PID, BODY, 10.0)
    for i in range(1, 21):
        kernel.descendants_s += share * 0.5
        seen = vitals.see(W0, PID, BODY, 10.0 + 0.5 * i)
    assert seen.still_s == 10.0
    assert (seen.idle_s > 5.0) is is_idle


def test_descendants_are_not_asked_for_where_a_rank_moves_or_waits(vitals: Vitals, kernel: Kernel) -> None:
    for i in range(20):
        vitals.see(W0, PID, moving(i), 10.0 + 0.5 * i)
    looks(vitals, dataclasses.replace(BODY, waiting=True, count=50), 20.0, 30.0)
    assert kernel.asked_of_descendants == 0
