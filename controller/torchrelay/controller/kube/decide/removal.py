"""Decides, when pods of a job are deleted, whether its ranks have to move, or the job itself was deleted."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

TOGETHER_S = 10.0
"""The pods of all ranks were deleted within this time if the job was deleted."""


@dataclass(frozen=True)
class Deleted:
    """A pod that had a rank. `at_s`: when its deletion was seen; `node_is_left`: its node has to be left anyway."""

    at_s: float
    node_is_left: bool


@dataclass(frozen=True)
class RemovalVerdict:
    removed: bool
    reason: str


def judge_removal(world_size: int, deleted: Mapping[int, Deleted], now_s: float) -> RemovalVerdict:
    """Decide whether the job was deleted. If that was not noticed, spares would go on with a job that no user wants any more.

    `deleted`: by rank.
    """
    recent = [r for r, d in deleted.items() if now_s - d.at_s <= TOGETHER_S and not d.node_is_left]
    if len(recent) == world_size:
        return RemovalVerdict(
            True, f"the pods of all {world_size} ranks were deleted within {TOGETHER_S:.0f} s: so was the job"
        )
    return RemovalVerdict(False, f"pods of {len(recent)} of {world_size} ranks were deleted lately")
