"""Draws failures over time: the same ones for every way to answer them."""

from __future__ import annotations

import random
from dataclasses import dataclass

from torchrelay.cli.spare_plan.causes import CAUSES, Cause, Takes

HOUR_S = 3600.0


@dataclass(frozen=True)
class ClusterSite:
    """A cluster and its job.

    `hours_per_failure`: GPU-hours between two failures. `together`: how often the loss of a node is one of `rack` nodes at
    once. `repair_hours`: mean time until what was lost can be used again.
    """

    gpus: int
    gpus_per_node: int
    hours_per_failure: float
    together: float = 0.05
    rack: int = 4
    repair_hours: float = 24.0


@dataclass(frozen=True)
class DrawnFailure:
    """One failure. `gpus`: how many are gone, for `repair_s`; 0 if none is."""

    at_s: float
    cause: Cause
    gpus: int
    repair_s: float


def draw_trace(site: ClusterSite, horizon_s: float, seed: int) -> list[DrawnFailure]:
    """Return failures in order of time: independent of each other, but for nodes that are lost together."""
    chance = random.Random(seed)
    mean_s = site.hours_per_failure / site.gpus * HOUR_S
    weights = [cause.count for cause in CAUSES]
    failures = []
    at_s = chance.expovariate(1 / mean_s)
    while at_s < horizon_s:
        (cause,) = chance.choices(CAUSES, weights)
        is_rack = chance.random() < site.together
        repair_s = chance.expovariate(1 / (site.repair_hours * HOUR_S))
        gpus = 0
        if cause.takes is Takes.DEVICE:
            gpus = 1
        elif cause.takes is Takes.NODE:
            gpus = site.gpus_per_node * (site.rack if is_rack and not cause.is_announced else 1)
        failures.append(DrawnFailure(at_s, cause, min(gpus, site.gpus), repair_s))
        at_s += chance.expovariate(1 / mean_s)
    return failures
