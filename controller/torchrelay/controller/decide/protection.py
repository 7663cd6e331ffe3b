"""Which ranks would not survive a loss, since nobody else has their tensors?"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from torchrelay.controller.decide.donors import is_replica
from torchrelay.protocol.messages import ReplicaCheck


def without_replica(world_size: int, checks: Mapping[int, Sequence[ReplicaCheck]]) -> list[int]:
    """Ranks whose tensors no other rank holds; none before all have compared contents after a step."""
    compared = [max((c.boundary for c in checks.get(rank, ())), default=-1) for rank in range(world_size)]
    boundary = min(compared, default=-1)
    if boundary < 1:
        return []
    contents = {r: frozenset(c.digests.items()) for r in checks for c in checks[r] if c.boundary == boundary}
    held_by = Counter(contents.values())
    alone = [rank for rank in range(world_size) if held_by[contents.get(rank, frozenset())] < 2]
    return [
        rank
        for rank in alone
        if not any(
            is_replica(checks[rank], checks[other], boundary, (rank, other))[0]
            for other in range(world_size)
            if other != rank
        )
    ]


def sentence(ranks: Sequence[int]) -> str:
    listed = ", ".join(map(str, ranks))
    return (
        f"no other rank holds the tensors of rank {listed}: it can be moved, but not replaced once it is lost"
        if len(ranks) == 1
        else f"no other rank holds the tensors of ranks {listed}: each can be moved, but not replaced once it is lost"
    )
