"""What capture takes of a step is told, and given up where it slows a job for good."""

from __future__ import annotations

import pytest
from support.host_state import take
from support.loop_script import LoopScript

from torchrelay.protocol.messages import Disabled
from torchrelay.protocol.options.cost_limit import LEAST_STEPS, MOST_LOST_S, MOST_S, MOST_SHARE_PERCENT, WINDOW_STEPS
from torchrelay.shim.step.cost_budget import Budget


def steps(count: int, cost_s: float, step_s: float, budget: Budget | None = None) -> Budget:
    budget = budget or Budget()
    for number in range(count + 1):
        budget.head(1000.0 + number * step_s)
        budget.spent(cost_s / 2)  # at the head
        budget.spent(cost_s / 2)  # and before the optimizer step
    return budget


def test_a_job_that_is_slower_for_good_is_over_its_budget() -> None:
    step_s = 0.1
    cost_s = 1.2 * step_s * MOST_SHARE_PERCENT / 100
    assert cost_s > MOST_S
    assert not steps(WINDOW_STEPS - 1, cost_s, step_s).exceeded()
    assert steps(WINDOW_STEPS, cost_s, step_s).exceeded()


def test_short_steps_may_have_a_larger_share() -> None:
    assert not steps(WINDOW_STEPS, 0.9 * MOST_S, MOST_S).exceeded()


def test_long_steps_may_cost_more() -> None:
    assert not steps(WINDOW_STEPS, 5 * MOST_S, 100 * MOST_S).exceeded()


def test_a_few_slow_steps_are_no_reason() -> None:
    budget = steps(WINDOW_STEPS // 3, 0.2, 0.3)
    assert not steps(WINDOW_STEPS, 0.001, 0.1, budget).exceeded()


def test_seconds_that_are_lost_do_not_wait_for_a_whole_window() -> None:
    cost_s = MOST_LOST_S / LEAST_STEPS
    assert not steps(LEAST_STEPS - 1, 2 * cost_s, 3 * cost_s).exceeded()
    assert steps(LEAST_STEPS, cost_s, 2 * cost_s).exceeded()


def test_a_limit_of_0_is_none() -> None:
    assert not steps(WINDOW_STEPS, 1.0, 1.1, Budget(0)).exceeded()


def test_a_step_that_waits_for_a_migration_is_not_counted() -> None:
    budget = steps(2, 0.01, 0.1)
    budget.interrupted()
    budget.head(2000.0)
    budget.head(2000.1)
    assert budget.medians()[1] == pytest.approx(0.1)
    assert budget.shares()[1] <= 0.11


def test_shares_are_those_of_single_steps() -> None:
    budget = steps(90, 0.001, 0.1)
    assert budget.shares() == (pytest.approx(0.01), pytest.approx(0.01))
    assert steps(5, 0.05, 0.1, budget).shares() == (pytest.approx(0.01), pytest.approx(0.5))
    assert Budget().shares() == (0, 0)


def test_the_reason_says_what_it_took_and_where_most_of_it_hangs() -> None:
    budget = steps(WINDOW_STEPS, 0.3, 0.5)
    reason = budget.reason(take({"registry": {str(n): [n] for n in range(20)}}))
    assert reason.startswith("capture took 300 ms of a step of 500 ms, more than --cost-limit 10 (percent)")
    assert reason.endswith("It looks at 23 objects, 22 of them below script")


def test_a_rank_over_its_budget_trains_on_without_protection_and_says_why(script: LoopScript) -> None:
    engine = script.engine
    exceeded = engine.budget.exceeded
    assert not exceeded()
    steps(WINDOW_STEPS, 1.0, 2.0, engine.budget)
    engine.budget.exceeded = lambda: engine.step.gates_passed >= 3  # type: ignore[method-assign]  # not before it trains
    ends = script.run(
        """
        done = 0
        for number in range(6):
            step()
            done += 1
        """
    )
    assert ends["done"] == 6
    assert not engine.capturing
    assert [type(told) for told in script.sent].count(Disabled) == 1
    assert "--cost-limit" in engine.unprotected.reason
    assert max(number for number, _ in script.boundaries) == 3


def test_a_rank_in_a_migration_does_not_give_up_for_its_cost(script: LoopScript) -> None:
    engine = script.engine
    steps(WINDOW_STEPS, 1.0, 2.0, engine.budget)
    assert engine.budget.exceeded()
    engine.shadow = object()
    assert not engine.unprotected.costs_too_much()
    assert engine.capturing
