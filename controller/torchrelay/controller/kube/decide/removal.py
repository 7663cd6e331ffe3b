"""Pods of a job are deleted: do its ranks have to move, or has somebody deleted the job?"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

TOGETHER_S = 10.0
"""Whoever deletes a job deletes its pods within this time."""


@dataclass(frozen=True)
class Deleted:
    """`at_s`: when the deletion of the pod that had the rank was seen; `node_is_left`: its node has to be left anyway."""

    at_s: float
    node_is_left: bool


@dataclass(frozen=True)
class RemovalVerdict:
    removed: bool
    reason: str


def judge_removal(world_size: int, deleted: Mapping[int, Deleted], now_s: float) -> RemovalVerdict:
    """`deleted`: by rank. Otherwise spares would go on with a job that nobody wants any more."""
    recent = [r for r, d in deleted.items() if now_s - d.at_s <= TOGETHER_S and not d.node_is_left]
    if len(recent) == world_size:
        return RemovalVerdict(
            True, f"the pods of all {world_size} ranks were deleted within {TOGETHER_S:.0f} s: so was the job"
        )
    return RemovalVerdict(False, f"pods of {len(recent)} of {world_size} ranks were deleted lately")
