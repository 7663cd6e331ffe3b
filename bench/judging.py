"""Whether ratios are within their bounds, from samples that scatter. Pure."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Verdict:
    """The verdict on one ratio. Less is better for all ratios. `spread`: what the median may be off by."""

    name: str
    median: float
    spread: float
    bound: float
    is_kept: bool
    reason: str


def spread_of(samples: Sequence[float]) -> float:
    """Return half of the distance between the quartiles; 0 for a single sample."""
    if len(samples) < 2:
        return 0.0
    low, _, high = statistics.quantiles(samples, n=4, method="inclusive")
    return (high - low) / 2


def judge(name: str, samples: Sequence[float], bound: float) -> Verdict:
    """Judge a ratio. It is refused if it is worse than its bound by more than its own spread, or if it was not measured."""
    if not samples or not all(math.isfinite(sample) for sample in samples):
        return Verdict(name, math.nan, 0.0, bound, False, "there is no number to judge")
    median, spread = statistics.median(samples), spread_of(samples)
    is_kept = median - spread <= bound
    relation = "within" if is_kept else "worse than"
    reason = f"{median:.3f} ± {spread:.3f} is {relation} the bound of {bound:g}"
    return Verdict(name, median, spread, bound, is_kept, reason)


def judge_all(found: Mapping[str, Sequence[float]], bounds: Mapping[str, float]) -> list[Verdict]:
    """Judge all ratios. Raises KeyError for a ratio without a bound: it would never fail."""
    return [judge(name, samples, bounds[name]) for name, samples in found.items()]
