"""How long a step takes, of the newest ones that are remembered."""

from __future__ import annotations

import random
import statistics

import pytest

from torchrelay.controller.picture.step_clock import STEPS_REMEMBERED, StepClock


def test_the_median_is_that_of_the_steps_that_are_remembered() -> None:
    clock, chance, now_s, boundary = StepClock(), random.Random(7), 0.0, 0
    clock.reached(boundary, now_s)
    assert clock.median_step_s == 0.0
    taken: list[float] = []
    for _ in range(3 * STEPS_REMEMBERED):
        steps, took_s = chance.choice((1, 1, 2, 5)), chance.choice((0.25, 0.5, chance.uniform(0.1, 9.0)))
        boundary, now_s, before_s = boundary + steps, now_s + took_s, now_s
        clock.reached(boundary, now_s)
        taken.append((now_s - before_s) / steps)
        assert clock.median_step_s == pytest.approx(statistics.median(taken[-STEPS_REMEMBERED:]))


def test_boundaries_that_were_gone_back_over_are_no_steps() -> None:
    clock = StepClock()
    clock.reached(10, 0.0)
    clock.reached(12, 2.0)
    clock.go_back()
    clock.reached(5, 50.0)
    clock.reached(6, 51.0)
    assert clock.median_step_s == 1.0
