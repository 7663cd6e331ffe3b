"""Tells whether another spare would fail as those before it did. Then none is spent on the rank."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from torchrelay.protocol.messages import Rehearsed
from torchrelay.protocol.names import REHEARSAL_DIFFERS, REHEARSAL_FAILED

ALIKE = 2
"""So many joins that failed with the same words are no accident."""


@dataclass(frozen=True)
class JoinFailure:
    """A join that has failed. `lasting`: as in OrderFailed. `by_chance`: the process was ended from outside."""

    rank: int
    worker: str
    reason: str
    lasting: bool = False
    by_chance: bool = False


def futile(rank: int, failures: Sequence[JoinFailure], rehearsed: Rehearsed | None = None) -> str:
    """Return why no process can take over the rank; empty as long as another one may.

    `failures`: of this migration. `rehearsed`: the latest rehearsal of the rank that told anything.
    """
    if rehearsed is not None and rehearsed.outcome in (REHEARSAL_FAILED, REHEARSAL_DIFFERS):
        at = f" at step {rehearsed.boundary}" if rehearsed.boundary >= 0 else ""
        return f"a rehearsal{at} has shown that no process could become rank {rank}: {rehearsed.reason}"
    own = [f for f in failures if f.rank == rank and not f.by_chance]
    for place, failure in enumerate(own):
        if failure.lasting:
            return f"{failure.worker} could not become rank {rank}, and no other process could: {failure.reason}"
        alike = [f for f in own[place:] if _words(f.reason) == _words(failure.reason)]
        if len(alike) >= ALIKE:
            named = ", ".join(f.worker for f in alike)
            return f"{named} could not become rank {rank}, all for the same reason: {failure.reason}"
    return ""


def first_reason(rank: int, failures: Sequence[JoinFailure]) -> str:
    """Return why the first spare could not take over the rank, as an addition to the reason that no spare is left."""
    own = [f for f in failures if f.rank == rank]
    return f"; the first one, {own[0].worker}, could not do it: {own[0].reason}" if own else ""


def _words(reason: str) -> str:
    """Return the reason without what differs from process to process: numbers and addresses."""
    return re.sub(r"0x[0-9a-f]+|\d+", "#", reason)
