"""A controller is new to a job that trains: who has which rank, and what becomes of a migration that its predecessor led?"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from torchrelay.protocol.words.phases import ABANDONED, ANEW, COMMITTED


@dataclass(frozen=True)
class Claim:
    """What is known of a process that says it has `rank`, or joins as it.

    `in_force`: the generation in which it holds the rank, -1 if it has never been let in; `announced`: the newest it has heard of.
    """

    worker: str
    rank: int
    in_force: int
    announced: int
    gone: bool = False


@dataclass(frozen=True)
class TakeOver:
    """`holders` by rank. `commit`: these are let into `generation`, which others are in already. `abandon`: the move is off, and
    these go on as before. `end`: these have no rank. `reason` in words; empty where there is nothing to settle."""

    holders: dict[int, str]
    generation: int
    commit: tuple[str, ...] = ()
    abandon: tuple[str, ...] = ()
    end: tuple[str, ...] = ()
    reason: str = ""

    @property
    def outcome(self) -> str:
        """Of the migration that was under way: as in events.TakenOver."""
        if self.commit or self.abandon:
            return COMMITTED if self.commit else ABANDONED
        return ANEW if self.reason else ""


def take_over(claims: Sequence[Claim], remembered: Mapping[int, str]) -> TakeOver:
    """`remembered`: rank -> who had it, as the predecessor has written down; between equals that counts."""
    committed = max((c.in_force for c in claims), default=-1)
    announced = max((c.announced for c in claims), default=-1)
    holders: dict[int, Claim] = {}
    able: dict[int, list[Claim]] = {}
    for claim in claims:
        if _level(claim, committed) == committed >= 0:
            able.setdefault(claim.rank, []).append(claim)
    for rank in sorted(able):
        holders[rank] = max(able[rank], key=lambda c: (remembered.get(c.rank) == c.worker, c.worker))
    chosen = {rank: c.worker for rank, c in holders.items()}
    with_rank = set(chosen.values())
    end = tuple(c.worker for c in claims if c.worker not in with_rank and not c.gone)
    late = tuple(c.worker for c in holders.values() if c.in_force < committed == c.announced and not c.gone)
    if late:
        why = f"the migration was done for some ranks already, so {', '.join(late)} go on with them"
        return TakeOver(chosen, committed, commit=late, end=end, reason=why)
    if announced > committed and not any(c.gone for c in holders.values()):
        why = "the migration was not done when its controller ended: all go on as before"
        return TakeOver(chosen, announced, abandon=tuple(chosen.values()), end=end, reason=why)
    if announced > committed:
        why = "the migration was not done when its controller ended: it begins anew"
        return TakeOver(chosen, announced, end=end, reason=why)
    return TakeOver(chosen, committed, end=end)


def _level(claim: Claim, committed: int) -> int:
    """Of the newest generation that it has a part in. Nobody is let in before all have verified: whoever has heard of a
    generation that is in force for one is a member of it."""
    return committed if claim.announced == committed else claim.in_force
