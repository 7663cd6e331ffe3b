from __future__ import annotations

import statistics

import pytest

from torchrelay.controller.health.stragglers import MINIMUM_STEPS, Stragglers


def run(own_s: list[float], steps: int, step_s: float | None = None, look_s: float = 1.0) -> Stragglers:
    """Ranks that need `own_s` for their part of a step, and wait for the slowest, looked at every `look_s`."""
    stragglers, whole = Stragglers(), step_s or max(own_s)
    for look in range(int(steps * whole / look_s) + 1):
        boundary = int(look * look_s / whole + 1e-9)
        for rank, mine in enumerate(own_s):
            stragglers.update(rank, boundary, boundary * (whole - mine), boundary * whole)
    return stragglers


def test_the_rank_that_does_not_wait_is_the_slow_one() -> None:
    ratios = run([0.1, 0.1, 0.3, 0.1], 60).ratios(4)
    assert ratios[2] == pytest.approx(3.0)
    assert max(ratios[r] for r in (0, 1, 3)) <= 1.0


def test_with_two_ranks_the_other_one_is_the_measure() -> None:
    assert run([0.3, 0.1], 60).ratios(2)[0] == pytest.approx(3.0)


@pytest.mark.parametrize("count", [2, 3, 4, 5, 8, 9])
def test_each_rank_is_measured_by_the_median_of_all_others(count: int) -> None:
    own_s = [0.1 * (1 + (7 * rank) % count) for rank in range(count)]
    for rank, ratio in run(own_s, 60, step_s=1.9).ratios(count).items():
        peers_s = statistics.median(s for other, s in enumerate(own_s) if other != rank)
        expected = own_s[rank] / peers_s if own_s[rank] - peers_s >= 0.19 else min(own_s[rank] / peers_s, 1.0)
        assert ratio == pytest.approx(expected), rank


def test_equal_ranks_are_equal() -> None:
    assert set(run([0.2] * 4, 60).ratios(4).values()) == {1.0}


def test_a_difference_that_costs_the_job_nothing_does_not_count() -> None:
    ratios = run([0.001, 0.003, 0.001], 100, step_s=0.5).ratios(3)
    assert max(ratios.values()) <= 1.0, "three times as slow, and 2 ms of a step of half a second"


def test_peers_that_need_next_to_nothing_make_no_ratio_of_millions() -> None:
    assert run([0.000_001, 0.5, 0.000_001], 60).ratios(3)[1] == pytest.approx(100.0)


def test_nobody_is_judged_before_all_have_done_enough_steps() -> None:
    few = run([0.1, 0.3], MINIMUM_STEPS - 1, look_s=0.3)
    assert few.ratios(2) == {}
    assert run([0.1, 0.3], 60).ratios(3) == {}, "a rank is missing"


def test_one_slow_step_long_ago_is_forgotten() -> None:
    stragglers = Stragglers()
    now_s = waited_s = 0.0
    for boundary in range(60):
        slow = 5.0 if boundary == 3 else 0.0
        now_s, waited_s = now_s + 1.0 + slow, waited_s + 0.5
        stragglers.update(0, boundary, waited_s, now_s)
        stragglers.update(1, boundary, waited_s + (5.0 if boundary > 3 else 0.0), now_s)
    assert max(stragglers.ratios(2).values()) == pytest.approx(1.0)


def test_a_process_that_took_over_starts_with_its_own_counters() -> None:
    stragglers = run([0.1, 0.3], 60)
    stragglers.update(0, 61, 0.0, 30.0)
    assert stragglers.ratios(2) == {}


def test_after_a_migration_all_is_forgotten() -> None:
    stragglers = run([0.1, 0.3], 60)
    stragglers.forget()
    assert stragglers.ratios(2) == {}
