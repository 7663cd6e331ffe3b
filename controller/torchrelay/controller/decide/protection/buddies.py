"""Decides which ranks keep copies of their state, and which rank keeps one of them on another node."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

MOST_OFTEN = 1
MOST_SELDOM = 1000
MOST_OFTEN_BETWEEN_NODES = 10
"""A copy that goes to another node takes the network's time too, which is not counted."""
_SHARE = 0.01
_COPIED_BYTES_PER_S = 2 << 30
_COPY_AT_LEAST_S = 0.002
_SHORTEST_STEP_S = 0.01


@dataclass(frozen=True)
class Keeping:
    """Whether a rank keeps copies. `buddy`: the rank on another node that fetches the copies; -1: there is none."""

    on: bool
    reason: str
    buddy: int = -1


def choose_every(size_bytes: int, step_s: float, nodes: int = 1) -> int:
    """Return the steps between two copies of `size_bytes` where the user has not said: the copies take a hundredth of the time."""
    copy_s = _COPY_AT_LEAST_S + size_bytes / _COPIED_BYTES_PER_S
    steps = math.ceil(copy_s / (_SHARE * max(step_s, _SHORTEST_STEP_S)))
    return min(max(steps, MOST_OFTEN if nodes == 1 else MOST_OFTEN_BETWEEN_NODES), MOST_SELDOM)


def decide_keeping(rank: int, needing: Mapping[int, str], is_known: bool, nodes: Mapping[int, str]) -> Keeping:
    """Decide whether the rank keeps copies, and which rank on another node fetches them. `nodes`: rank -> its node.

    `needing`: ranks for whose loss nothing else may help, with why; `is_known`: contents were compared since the first step.
    If one rank needs to go back, all do, so all keep copies. Only ranks that no other one could stand in for need a copy elsewhere,
    since their own may be lost with their node.
    """
    if is_known and not needing:
        return Keeping(False, "every rank's tensors are held by another one as well")
    reason = f"rank {min(needing)}: {needing[min(needing)]}" if needing else "contents have not been compared yet"
    return Keeping(True, reason, choose_buddy(rank, nodes))


def choose_buddy(rank: int, nodes: Mapping[int, str]) -> int:
    """Return the rank in the same place on the next node of the ring; -1 if there is no other node."""
    ring = sorted(set(nodes.values()))
    if len(ring) < 2:
        return -1
    here = _on(nodes, nodes[rank])
    there = _on(nodes, ring[(ring.index(nodes[rank]) + 1) % len(ring)])
    return there[here.index(rank) % len(there)]


def _on(nodes: Mapping[int, str], node: str) -> Sequence[int]:
    return sorted(rank for rank, where in nodes.items() if where == node)
