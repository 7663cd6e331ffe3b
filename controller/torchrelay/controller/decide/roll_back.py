"""Nobody holds what a lost rank had: is there a step whose copies all ranks still have, and where do they lie?"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from torchrelay.controller.decide.stand import Cannot
from torchrelay.protocol.messages import Standing

_UNDER_WAY = ("body", "gate", "torn")


@dataclass(frozen=True)
class Step:
    """All ranks can go back to `boundary`; `redone`: steps that are done again, the one in flight among them."""

    boundary: int
    redone: int
    reason: str


def choose_step(
    held: Mapping[int, Mapping[int, Collection[str]]], places: Mapping[int, str], standings: Mapping[int, Standing]
) -> Step | Cannot:
    """`held`: rank -> boundary of each whole copy -> the nodes that have it; `places`: rank -> where it is to enter."""
    without = [rank for rank in sorted(places) if not held.get(rank)]
    if without:
        return Cannot(f"there is no whole copy of the state of rank {_listed(without)} yet")
    common = set.intersection(*(set(held[rank]) for rank in places))
    if not common:
        have = "; ".join(f"rank {rank}: {_listed(held[rank])}" for rank in sorted(places))
        return Cannot(f"the copies of the ranks are of no common boundary ({have})")
    at_hand = [b for b in common if all(places[rank] in held[rank][b] for rank in places)]
    if not at_hand:
        newest = max(common)
        rank = next(r for r in sorted(places) if places[r] not in held[r][newest])
        return Cannot(
            f"the copy of rank {rank} lies on {_listed(held[rank][newest])}, and {places[rank]}, where it would go on, has none"
        )
    boundary = max(at_hand)
    furthest = max((s.gates_passed + (s.position in _UNDER_WAY) for s in standings.values()), default=boundary)
    redone = max(furthest - boundary, 0)
    again = "1 step is" if redone == 1 else f"{redone} steps are"
    return Step(boundary, redone, f"all ranks go back to their copies of boundary {boundary}; {again} done again")


def _listed(items: Collection[int] | Collection[str]) -> str:
    return ", ".join(map(str, sorted(items))) or "none"
