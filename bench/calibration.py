"""The batch with which a step takes as long as the requirement says, on the machine at hand."""

from __future__ import annotations

from collections.abc import Callable, Mapping

TARGET_S = 0.100
TOLERANCE_S = 0.010
FIRST_BATCH = 14
TRIES = 8
LARGEST_STRIDE = 4


def calibrate(step_s: Callable[[int], float], say: Callable[[str], None]) -> int:
    """The batch whose step, measured by `step_s(batch)`, is within TOLERANCE_S of TARGET_S; else the nearest of TRIES."""
    tried: dict[int, float] = {}
    batch = FIRST_BATCH
    for _ in range(TRIES):
        # One that was tried before is measured again: what else runs on the machine may have changed.
        tried[batch] = step_s(batch)
        say(f"calibration: a step of {tried[batch] * 1e3:.1f} ms with {batch} sequences per rank")
        if is_right(tried[batch]):
            return batch
        batch = next_batch(tried)
    nearest = _by_nearness(tried)[0]
    say(
        f"calibration: no batch was found that takes {TARGET_S * 1e3:.0f} ms; {nearest} sequences per rank come nearest"
    )
    return nearest


def is_right(step_s: float) -> bool:
    return abs(step_s - TARGET_S) <= TOLERANCE_S


def next_batch(tried: Mapping[int, float]) -> int:
    """By proportion from one measurement, along a straight line through two from more: those around the target, if any.

    At least 1, and at most LARGEST_STRIDE times what was measured: of two steps that take the same there is no line.
    """
    nearest = _by_nearness(tried)
    batch, seconds = nearest[0], tried[nearest[0]]
    slope = seconds / batch
    if len(nearest) > 1:
        across = [other for other in nearest if (tried[other] > TARGET_S) != (seconds > TARGET_S)]
        other = (across or nearest[1:])[0]
        measured = (tried[other] - seconds) / (other - batch)
        # On a busy machine a larger batch may have been the faster one: then the line leads nowhere.
        slope = measured if measured > 0 else slope
    return max(1, min(round(batch + (TARGET_S - seconds) / slope), LARGEST_STRIDE * batch))


def _by_nearness(tried: Mapping[int, float]) -> list[int]:
    return sorted(tried, key=lambda batch: abs(tried[batch] - TARGET_S))
