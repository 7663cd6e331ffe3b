"""Tells whether a rank holds other parameters than its replicas, though it held the same before. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from torchrelay.protocol.messages import ReplicaCheck

MINIMUM_RANKS = 3
"""Of two that differ it cannot be known which one is wrong."""


def odd_one_out(checks: Mapping[int, Sequence[ReplicaCheck]], world_size: int) -> tuple[int, str] | None:
    """Return the rank that differs from all others, which agree, at the newest head that all have checked; and how it differs.

    Only tensors count that were equal on all ranks at the checked boundary before: others were never replicas.
    """
    if world_size < MINIMUM_RANKS or len(checks) < world_size:
        return None
    by_head = [{c.at: c for c in checks[rank]} for rank in range(world_size)]
    common = sorted(set.intersection(*(set(b) for b in by_head)))
    if len(common) < 2:
        return None
    before, now = ([known[at] for known in by_head] for at in common[-2:])
    if any(c.since > common[-2].boundary for c in now):
        return None  # a loop of its own has begun on that rank: its paths mean other tensors than before
    suspects: dict[int, list[str]] = {}
    for path in now[0].digests:
        was, is_ = ([c.digests.get(path) for c in at] for at in (before, now))
        if None in was or None in is_ or len(set(was)) != 1 or len(set(is_)) != 2:
            continue
        odd = [rank for rank, digest in enumerate(is_) if is_.count(digest) == 1]
        if len(odd) != 1:
            return None
        suspects.setdefault(odd[0], []).append(path)
    if len(suspects) != 1:
        return None
    ((rank, paths),) = suspects.items()
    return rank, (
        f"{len(paths)} tensors of rank {rank} ({paths[0]}, ...) differ after step {common[-1].boundary} from those of all other "
        f"ranks, which agree; after step {common[-2].boundary} all were equal"
    )
