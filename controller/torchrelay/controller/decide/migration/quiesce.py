"""At which future boundary shall everybody stop for a planned migration?"""

from __future__ import annotations

import math
from dataclasses import dataclass

from torchrelay.controller.config import Policy


@dataclass(frozen=True)
class QuiescePoint:
    """`allowance_s`: how long the steps until there should take at the most."""

    boundary: int
    allowance_s: float
    reason: str


def choose_boundary(furthest: int, median_step_s: float, tries: int, policy: Policy) -> QuiescePoint:
    """Far enough that question and answers get around before the fastest rank is there; doubled with each try."""
    steps = policy.quiesce_steps
    if median_step_s > 0:
        steps += math.ceil(policy.quiesce_margin_s / median_step_s)
    steps <<= tries
    boundary = furthest + steps
    reason = f"all are to stop after step {boundary}, {steps} steps ahead of the fastest rank"
    return QuiescePoint(boundary, 3 * steps * median_step_s, reason)
