"""What an unplanned migration of one rank costs in a job of any size, term by term. Pure.

Each term says where its number comes from: measured here, published by others, given by the user, or reckoned from these.
"""

from __future__ import annotations

import itertools
import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum


class Basis(str, Enum):
    """Where the number of a term comes from."""

    MEASURED = "measured here"
    EXTRAPOLATED = "extrapolated from what was measured here"
    PUBLISHED = "between published figures"
    GIVEN = "given"


@dataclass(frozen=True)
class Installation:
    """A job and its network. `state_bytes`: of one rank. `latency_s`: of a small message, one way, between machines."""

    state_bytes: float = 10e9
    transfer_bytes_per_s: float = 1e9
    latency_s: float = 20e-6
    detect_s: float = 0.1
    prepare_s: float = 30.0
    """The script's own set-up in the spare."""
    step_s: float = 10.0
    """The step in flight is done again: half of it was lost on average, and half is waited for."""


@dataclass(frozen=True)
class LinearFit:
    """Seconds: `fixed_s` and `per_rank_s` for each rank."""

    fixed_s: float
    per_rank_s: float

    def at(self, ranks: int) -> float:
        return self.fixed_s + self.per_rank_s * ranks


@dataclass(frozen=True)
class Measured:
    """What the walks have found. `most_ranks`: of the largest one; beyond it a term is extrapolated."""

    controller: LinearFit
    """Processor time of the controller in one migration: it does one thing after the other."""
    round_s: float
    """Processor time of a rank in each round of a gate."""
    call_s: float
    """The same for each connection of a gate that it makes and takes."""
    store_ops_per_s: float
    status_bytes_per_rank: float
    most_ranks: int


@dataclass(frozen=True)
class Term:
    name: str
    seconds: float
    basis: Basis


PUBLISHED_GROUPS = ((2_048, 5.0), (10_000, 30.0), (96_000, 265.0))
"""Ranks and seconds until all communicators of a job are there: docs/scaling.md names the sources."""


def fit_line(points: Sequence[tuple[int, float]]) -> LinearFit:
    """Return the line of least squares through (ranks, seconds), with neither part below 0. Raises ValueError for one point."""
    if len({ranks for ranks, _ in points}) < 2:
        raise ValueError("a line needs two sizes")
    mean_x = statistics.fmean(x for x, _ in points)
    mean_y = statistics.fmean(y for _, y in points)
    slope = sum((x - mean_x) * (y - mean_y) for x, y in points) / sum((x - mean_x) ** 2 for x, _ in points)
    slope = max(slope, 0.0)
    return LinearFit(max(mean_y - slope * mean_x, 0.0), slope)


def rounds(ranks: int) -> int:
    """Return how many rounds a gate has."""
    return (ranks - 1).bit_length()


def published_groups_s(ranks: int) -> float:
    """Return the seconds of NCCL's set-up: along a straight line between published figures, both axes logarithmic.

    Beyond the first and last figure the nearest line goes on.
    """
    pairs = list(itertools.pairwise(PUBLISHED_GROUPS))
    (low, low_s), (high, high_s) = next((pair for pair in pairs if ranks <= pair[1][0]), pairs[-1])
    power = math.log(high_s / low_s) / math.log(high / low)
    return float(low_s * (ranks / low) ** power)


def store_s(ranks: int, measured: Measured) -> float:
    """Return the seconds until the store has answered all ranks.

    Each rank writes one address, and asks for one in each round of the gate.
    """
    return ranks * (1 + rounds(ranks)) / measured.store_ops_per_s


def migration(ranks: int, site: Installation, measured: Measured) -> list[Term]:
    """Return the terms of the pause, in the order in which they come."""
    ours = Basis.MEASURED if ranks <= measured.most_ranks else Basis.EXTRAPOLATED
    return [
        Term("detect", site.detect_s, Basis.GIVEN),
        Term("controller", measured.controller.at(ranks), ours),
        Term("set-up of the script", site.prepare_s, Basis.GIVEN),
        Term("transfer", site.state_bytes / site.transfer_bytes_per_s, Basis.GIVEN),
        Term("store", store_s(ranks, measured), ours),
        Term("gate's connections", rounds(ranks) * (measured.call_s + 4 * site.latency_s), ours),
        Term("communicators", published_groups_s(ranks), Basis.PUBLISHED),
        Term("gate", gate_s(ranks, site, measured), ours),
        Term("step done again", site.step_s, Basis.GIVEN),
    ]


def gate_s(ranks: int, site: Installation, measured: Measured) -> float:
    """Return what a gate costs when all ranks come at once and no message is late."""
    return rounds(ranks) * (measured.round_s + site.latency_s)


def late_gates_share(ranks: int, late_share: float) -> float:
    """Return the share of gates that are late. A gate is late if one message is, since all ranks wait for it."""
    return 1.0 - (1.0 - late_share) ** (ranks * rounds(ranks))


def leading(terms: Sequence[Term]) -> Term:
    return max(terms, key=lambda term: term.seconds)
