"""How often an expert would save. Pure."""

from __future__ import annotations

import math


def checkpoint_every(save_cost_s: float, between_faults_s: float, step_s: float) -> int:
    """Return the steps between two saves by Young's formula: saves and steps done again then take least time together."""
    return max(round(math.sqrt(2 * save_cost_s * between_faults_s) / step_s), 1)
