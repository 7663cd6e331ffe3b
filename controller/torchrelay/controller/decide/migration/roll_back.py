"""Nobody holds what a lost rank had: is there a step whose copies all ranks still have, where do they lie, and who gives them?"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from torchrelay.controller.decide.migration.stand import Cannot
from torchrelay.protocol.messages import Standing
from torchrelay.protocol.words.positions import StandingPosition

_UNDER_WAY = (StandingPosition.BODY, StandingPosition.GATE)
"""The gates that were passed do not count the step that is under way. Who is torn has passed its gate."""


@dataclass(frozen=True)
class RollBackStep:
    """All ranks can go back to `boundary`; `redone`: steps that are done again, the one in flight among them."""

    boundary: int
    redone: int
    reason: str


def choose_step(
    held: Mapping[int, Mapping[int, Collection[str]]],
    places: Mapping[int, str],
    standings: Mapping[int, Standing],
    seen_boundary: int = 0,
) -> RollBackStep | Cannot:
    """`held`: rank -> boundary of each whole copy -> the nodes that have it; `places`: rank -> where it is to enter;
    `seen_boundary`: the furthest of any rank, which tells what is done again where all are lost.

    A copy on a node where some rank goes on is given by that rank to whoever needs it.
    """
    without = [rank for rank in sorted(places) if not held.get(rank)]
    if without:
        return Cannot(f"there is no whole copy of the state of rank {_listed(without)} yet")
    common = set.intersection(*(set(held[rank]) for rank in places))
    if not common:
        have = "; ".join(f"rank {rank}: {_listed(held[rank])}" for rank in sorted(places))
        return Cannot(f"the copies of the ranks are of no common step ({have})")
    refusals = {b: choose_givers({rank: held[rank][b] for rank in places}, places) for b in common}
    at_hand = [b for b, givers in refusals.items() if not isinstance(givers, Cannot)]
    if not at_hand:
        refusal = refusals[max(common)]
        assert isinstance(refusal, Cannot)
        return refusal
    boundary = max(at_hand)
    furthest = max((s.gates_passed + (s.position in _UNDER_WAY) for s in standings.values()), default=seen_boundary + 1)
    redone = max(furthest - boundary, 0)
    again = "1 step is" if redone == 1 else f"{redone} steps are"
    return RollBackStep(boundary, redone, f"all ranks go back to their copies of step {boundary}; {again} done again")


def choose_givers(held: Mapping[int, Collection[str]], places: Mapping[int, str]) -> dict[int, int] | Cannot:
    """For each rank whose copy does not lie where it enters: the rank that gives it, which enters where the copy lies.

    `held`: rank -> the nodes that have its copy of the step in question. Who has given least is asked first.
    """
    givers: dict[int, int] = {}
    for rank, place in sorted(places.items()):
        if place in held[rank]:
            continue
        able = [other for other in sorted(places) if other != rank and places[other] in held[rank]]
        if not able:
            where = f"lies on {_listed(held[rank])}, where no rank goes on" if held[rank] else "is on no node any more"
            return Cannot(f"the copy of rank {rank} {where}, and {place}, where rank {rank} would go on, has none")
        load = list(givers.values())
        givers[rank] = min(able, key=load.count)
    return givers


def _listed(items: Collection[int] | Collection[str]) -> str:
    return ", ".join(map(str, sorted(items))) or "none"
