"""Is a rank moved to another machine, so that the loss of the one that it is on does not end the job? Pure."""

from __future__ import annotations

import sys
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from torchrelay.controller.decide.migration.donors import is_replica
from torchrelay.controller.decide.protection.known import (
    Known,
    is_compared,
    on_one_machine,
    without_replica,
    without_replica_elsewhere,
)
from torchrelay.controller.decide.replacement.respawn import HOUR_S
from torchrelay.protocol.messages import ReplicaCheck

MOST_SHARE = 0.01
"""Of the job's time, for which such moves may hold training up: after each one as much is waited as that takes."""
MOST_IN_VAIN = 3
"""So many that brought nothing within an hour: whatever stood in their way would stand in the next one's, too."""


@dataclass(frozen=True)
class ReadySpares:
    """`by_machine`: how many could take over a rank now. `are_refilled`: a new one is made for each that is used.

    `homes`: by rank, the machine that has its place in the job's order, where that is there.
    """

    by_machine: Mapping[str, int]
    are_refilled: bool
    homes: Mapping[int, str]


@dataclass(frozen=True)
class MoveAway:
    """The rank is better on any machine but its own."""

    rank: int
    why: str

    @property
    def reason(self) -> str:
        return f"to another machine, since {self.why}"


@dataclass(frozen=True)
class StayThere:
    """`reason` is empty where no move would make the job better protected."""

    reason: str = ""


def spread(k: Known, spares: ReadySpares) -> MoveAway | StayThere:
    """One rank at a time, and none unless there are spares for all that have to move.

    After each move fewer ranks depend on one machine, so moves come to an end.
    """
    lonely = without_replica(k)
    together = on_one_machine(k)
    if not k.machine_of or k.losses_barred or not is_compared(k) or (lonely and not k.has_copies):
        return StayThere()  # a loss would end the job wherever its ranks are, or that is not known yet
    exposed = sorted(without_replica_elsewhere(k).keys() - lonely.keys() - k.kept_elsewhere)
    needed = _groups(exposed, k.checks)
    if lonely and together:  # a copy of each goes to another machine once a rank is there
        exposed = list(range(k.world_size))
        needed = 1
    if not exposed:
        return StayThere()
    elsewhere = {r: {m for m, n in spares.by_machine.items() if n and m != k.machine_of[r]} for r in exposed}
    usable = set().union(*elsewhere.values())
    ready = sum(spares.by_machine[m] for m in usable)
    rank = min(exposed, key=lambda r: (not elsewhere[r], spares.homes.get(r) not in elsewhere[r], r))
    where = k.machine_of[rank]
    why = "all ranks are there" if together else f"only there is what rank {rank} holds"
    why = f"the loss of {where} would end the job: {why}"
    if ready < needed or not elsewhere[rank]:
        return StayThere(f"{why}; spares needed on other machines: {needed}, ready there: {ready}")
    if sum(spares.by_machine.values()) < 2 and not spares.are_refilled:
        return StayThere(f"{why}; the only spare is kept for a rank that is lost")
    return MoveAway(rank, why)


def depends_on(rank: int, checks: Mapping[int, Sequence[ReplicaCheck]], place_of: Mapping[int, str]) -> str:
    """Return the one place where all others are that hold what `rank` does; empty if there are several.

    Where nobody holds it, all others count: they keep copies for each other.
    """
    others = [r for r in sorted(place_of) if r != rank]
    places: set[str] = set()
    for other in others:
        if place_of[other] not in places and _holds_the_same(checks, rank, other):
            places.add(place_of[other])
        if len(places) > 1:
            return ""
    places = places or {place_of[other] for other in others}
    return places.pop() if len(places) == 1 else ""


def pause_s(calm_s: float, latest_cost_s: float, in_vain_s: Collection[float], now_s: float) -> float:
    """Return how long all has to be calm before the next move. `in_vain_s`: when moves brought nothing."""
    return max(calm_s, latest_cost_s / MOST_SHARE) * 2.0 ** len(recent(in_vain_s, now_s))


def spent(in_vain_s: Collection[float], now_s: float) -> str:
    """Return why no move is made for now; empty if one may be."""
    count = len(recent(in_vain_s, now_s))
    return f"{count} moves to another machine brought nothing within the hour" if count >= MOST_IN_VAIN else ""


def recent(times_s: Collection[float], now_s: float) -> list[float]:
    """Return those of the last hour."""
    return [at_s for at_s in times_s if now_s - at_s < HOUR_S]


def _groups(ranks: Sequence[int], checks: Mapping[int, Sequence[ReplicaCheck]]) -> int:
    """How many groups of ranks that hold the same there are: the move of one rank of each helps them all."""
    first: list[int] = []
    for rank in ranks:
        if not any(_holds_the_same(checks, rank, other) for other in first):
            first.append(rank)
    return len(first)


def _holds_the_same(checks: Mapping[int, Sequence[ReplicaCheck]], rank: int, other: int) -> bool:
    return is_replica(checks.get(rank, ()), checks.get(other, ()), sys.maxsize, (rank, other))[0]
