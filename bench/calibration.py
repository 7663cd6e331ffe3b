"""The amount of work with which a step takes as long as the requirement says, on the machine at hand."""

from __future__ import annotations

from collections.abc import Callable, Mapping

TARGET_S = 0.100
TOLERANCE_S = 0.010
FIRST_AMOUNT = 14
TRIES = 8
LARGEST_STRIDE = 4


def calibrate(step_s: Callable[[int], float], say: Callable[[str], None]) -> int:
    """Find the amount whose step, measured by `step_s(amount)`, is within TOLERANCE_S of TARGET_S; else the nearest of TRIES."""
    tried: dict[int, float] = {}
    amount = FIRST_AMOUNT
    for _ in range(TRIES):
        # One that was tried before is measured again: what else runs on the machine may have changed.
        tried[amount] = step_s(amount)
        say(f"calibration: a step of {tried[amount] * 1e3:.1f} ms with {amount} of work")
        if is_right(tried[amount]):
            return amount
        amount = next_amount(tried)
    nearest = _by_nearness(tried)[0]
    say(f"calibration: no amount was found that takes {TARGET_S * 1e3:.0f} ms; {nearest} of work comes nearest")
    return nearest


def is_right(step_s: float) -> bool:
    return abs(step_s - TARGET_S) <= TOLERANCE_S


def next_amount(tried: Mapping[int, float]) -> int:
    """Guess the next amount: in proportion to a single measurement, or on a line through two, if possible around the target.

    At least 1, and at most LARGEST_STRIDE times the measured amount: two steps of equal time give no line.
    """
    nearest = _by_nearness(tried)
    amount, seconds = nearest[0], tried[nearest[0]]
    slope = seconds / amount
    if len(nearest) > 1:
        across = [other for other in nearest if (tried[other] > TARGET_S) != (seconds > TARGET_S)]
        other = (across or nearest[1:])[0]
        measured = (tried[other] - seconds) / (other - amount)
        # On a busy machine a larger amount may have been the faster one: then the line leads nowhere.
        slope = measured if measured > 0 else slope
    return max(1, min(round(amount + (TARGET_S - seconds) / slope), LARGEST_STRIDE * amount))


def _by_nearness(tried: Mapping[int, float]) -> list[int]:
    return sorted(tried, key=lambda amount: abs(tried[amount] - TARGET_S))
