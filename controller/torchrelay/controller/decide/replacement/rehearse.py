"""Decides whether a rehearsal is due, of which rank, and why (not)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

FIRST_AFTER_S = 10.0
"""Training has to have gone on for so long: a job that ends before needs no rehearsal."""
BETWEEN_S = 20.0
"""Rank 0 often does what no other rank does (it logs, it saves), so a second rank is rehearsed right after it."""
CHANGED_AFTER_S = 120.0
"""The shape of the state changes several times in a row: new shapes wait for each other."""
OPEN_AFTER_S = 120.0
"""A rehearsal that was broken off says nothing, and is tried again after so long."""
FIRST_RANKS = 2


@dataclass(frozen=True)
class Past:
    """The latest rehearsal of a rank: when it ended, whether it told anything, and the shape of the state then."""

    at_s: float
    judged: bool
    shape: int


@dataclass(frozen=True)
class RehearsalSituation:
    """What the decision is made from. `every_s`: time from one rehearsal to the next; 0: none are made.

    `trains_since_s`: when it was known that all ranks train, in a loop that is known, and which have replicas; None before.
    `shape`: grows with each kind of thing that the state has not had before. `barred`: why no process can rehearse.
    `busy`: what goes on that must not be disturbed. `stands`: ranks stand still meanwhile, as in a check, and nothing is waited
    for.
    """

    world_size: int
    every_s: float
    trains_since_s: float | None
    shape: int
    past: Mapping[int, Past]
    barred: str = ""
    busy: str = ""
    stands: bool = False


@dataclass(frozen=True)
class Due:
    rank: int
    reason: str


@dataclass(frozen=True)
class NotDue:
    """No rehearsal is due. `at_s`: when one may be, if the clock alone decides that."""

    reason: str
    at_s: float | None = None


def rehearse(s: RehearsalSituation, now_s: float) -> Due | NotDue:
    if s.every_s <= 0:
        return NotDue("rehearsals are switched off")
    if s.busy:
        return NotDue(s.busy)
    if s.trains_since_s is None:
        return NotDue("not all ranks have come round their training loop and compared what they hold")
    if s.barred:
        return NotDue(s.barred)
    rank, at_s, reason = _next(s)
    if now_s < at_s:
        return NotDue(f"rank {rank} is next", at_s)
    return Due(rank, reason)


def _next(s: RehearsalSituation) -> tuple[int, float, str]:
    """Return the rank that is next, when that is, and why then."""
    assert s.trains_since_s is not None
    first_s = s.trains_since_s + (0.0 if s.stands else min(FIRST_AFTER_S, s.every_s))
    if not s.past:
        return 0, first_s, "all ranks train"
    last_s = max(p.at_s for p in s.past.values())
    for rank in range(min(s.world_size, FIRST_RANKS)):
        if rank not in s.past:
            after_s = 0.0 if s.stands else min(BETWEEN_S, s.every_s)
            return rank, max(first_s, last_s + after_s), "it has not been rehearsed yet"
    for rank, past in sorted(s.past.items()):
        if not past.judged:
            return rank, past.at_s + min(OPEN_AFTER_S, s.every_s), "its latest rehearsal was broken off"
    if s.shape > max(p.shape for p in s.past.values()):
        return 0, last_s + min(CHANGED_AFTER_S, s.every_s), "the state has things of a kind that it had not before"
    rank = min(range(s.world_size), key=lambda r: (s.past[r].at_s if r in s.past else float("-inf"), r))
    return rank, last_s + s.every_s, "the latest rehearsal is long ago"
