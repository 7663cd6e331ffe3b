"""Which tensors does a rank alone hold, so that copies of them in each step would let a new process take it over?"""

from __future__ import annotations

from collections.abc import Mapping

from torchrelay.controller.decide.migration.donors import differing_paths
from torchrelay.controller.decide.protection.known import PEERS, Known, without_replica


def own_tensors(k: Known) -> Mapping[int, frozenset[str]]:
    """Return the paths by rank, of ranks that share all else with another one. A rank knows by itself what it can copy.

    Nothing is asked for where there are several nodes: a new process may be on another one than the copy.
    """
    if k.nodes > 1:
        return {}
    found = {}
    for rank in without_replica(k):
        others = [r for r in range(k.world_size) if r != rank and r not in k.lost]
        nearest = sorted(others, key=lambda r: abs(r - rank))[:PEERS]
        apart = [differing_paths(k.checks[rank], k.checks[r], (rank, r)) for r in nearest]
        paths = min(filter(None, apart), key=len, default=set())
        if paths:
            found[rank] = frozenset(paths)
    return found
