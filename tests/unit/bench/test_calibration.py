"""The amount that the measurement of a step's cost is made with."""

from __future__ import annotations

import itertools
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType

import pytest

BENCH = Path(__file__).resolve().parents[3] / "bench"


@pytest.fixture
def calibration(monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    monkeypatch.syspath_prepend(str(BENCH))
    import calibration

    yield calibration
    sys.modules.pop("calibration")


@pytest.mark.parametrize(
    "machine",
    [lambda n: 0.005 * n, lambda n: 0.060 + 0.0008 * n, lambda n: 0.030 + 0.0001 * n**2, lambda n: 0.013 + 0.019 * n],
    ids=["proportional", "slow to start", "worse than proportional", "slow"],
)
def test_an_amount_is_found_whose_step_takes_what_is_asked_for(
    machine: Callable[[int], float], calibration: ModuleType
) -> None:
    said: list[str] = []
    amount = calibration.calibrate(machine, said.append)
    assert machine(amount) == pytest.approx(0.100, abs=0.010)
    assert f"{machine(amount) * 1e3:.1f} ms with {amount} of work" in said[-1]
    assert len(said) <= calibration.TRIES


def test_the_first_amount_that_is_right_is_taken(calibration: ModuleType) -> None:
    said: list[str] = []
    assert calibration.calibrate(lambda amount: 0.109, said.append) == calibration.FIRST_AMOUNT
    assert len(said) == 1


def test_a_machine_without_such_an_amount_gets_the_nearest_and_is_told(calibration: ModuleType) -> None:
    said: list[str] = []
    assert calibration.calibrate(lambda amount: 0.200 + 0.05 * amount, said.append) == 1
    assert "no amount was found" in said[-1]


def test_times_that_fall_with_the_amount_lead_to_an_end(calibration: ModuleType) -> None:
    steps = itertools.chain([0.150, 0.160, 0.155, 0.170], itertools.repeat(0.150))
    said: list[str] = []
    assert calibration.calibrate(lambda amount: next(steps), said.append) >= 1
    assert "no amount was found" in said[-1]


def test_a_larger_amount_that_happened_to_be_faster_does_not_lead_away(calibration: ModuleType) -> None:
    assert calibration.next_amount({14: 0.150, 9: 0.160}) < 14
    assert calibration.next_amount({14: 0.060, 9: 0.070}) > 9


def test_the_line_goes_through_measurements_on_both_sides_of_the_target(calibration: ModuleType) -> None:
    assert calibration.next_amount({14: 0.127, 11: 0.1235, 1: 0.052}) == 8


def test_two_steps_that_take_the_same_do_not_lead_far_away(calibration: ModuleType) -> None:
    assert calibration.next_amount({7: 0.0601, 6: 0.0600}) == 7 * calibration.LARGEST_STRIDE


def test_an_amount_is_measured_again_when_the_machine_has_changed(calibration: ModuleType) -> None:
    busy = iter([0.206, 0.115])
    said: list[str] = []
    amount = calibration.calibrate(lambda amount: next(busy, 0.0094 * amount), said.append)
    assert 0.0094 * amount == pytest.approx(0.100, abs=0.010)
    assert sum("with 7 of work" in text for text in said) == 2
