"""Tells whether another spare would fail as those before it did. Then none is spent on the rank."""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
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
    node: str
    reason: str
    lasting: bool = False
    by_chance: bool = False


def futile(
    rank: int, failures: Sequence[JoinFailure], nodes: Collection[str], rehearsed: Rehearsed | None = None
) -> str:
    """Return why no process can take over the rank; empty as long as another one may.

    `failures`: of this migration. `nodes`: those with a spare for the rank. `rehearsed`: the latest rehearsal of the rank
    that told anything.
    """
    if rehearsed is not None and rehearsed.outcome in (REHEARSAL_FAILED, REHEARSAL_DIFFERS):
        at = f" at step {rehearsed.boundary}" if rehearsed.boundary >= 0 else ""
        return f"a rehearsal{at} has shown that no process could become rank {rank}: {rehearsed.reason}"
    for failure in failures:
        if failure.rank == rank and failure.lasting and not failure.by_chance:
            return f"{failure.worker} could not become rank {rank}, and no other process could: {failure.reason}"
    for alike in _alike(rank, failures):
        failed_on = {f.node for f in alike}
        if len(failed_on) == 1 and not failed_on.issuperset(nodes):
            continue  # the node may be what they have in common: memory that is full, a device
        named = ", ".join(f.worker for f in alike)
        return f"{named} could not become rank {rank}, all for the same reason: {alike[0].reason}"
    return ""


def barred_nodes(rank: int, failures: Sequence[JoinFailure]) -> set[str]:
    """Return the nodes on which processes have failed alike to become the rank, and others would."""
    alike_on = [{f.node for f in alike} for alike in _alike(rank, failures)]
    return {node for at in alike_on if len(at) == 1 for node in at}


def first_reason(rank: int, failures: Sequence[JoinFailure]) -> str:
    """Return why the first spare could not take over the rank, as an addition to the reason that no spare is left."""
    own = [f for f in failures if f.rank == rank]
    return f"; the first one, {own[0].worker}, could not do it: {own[0].reason}" if own else ""


def _alike(rank: int, failures: Sequence[JoinFailure]) -> list[list[JoinFailure]]:
    """Return the failures of the rank that have the same words, where they are too many for an accident."""
    by_words: dict[str, list[JoinFailure]] = {}
    for failure in failures:
        if failure.rank == rank and not failure.by_chance:
            by_words.setdefault(_words(failure.reason), []).append(failure)
    return [alike for alike in by_words.values() if len(alike) >= ALIKE]


def _words(reason: str) -> str:
    """Return the reason without what differs from process to process: numbers and addresses."""
    return re.sub(r"0x[0-9a-f]+|\d+", "#", reason)
