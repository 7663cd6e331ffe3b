"""May a process that was lost be started again, in its place or elsewhere?"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

MAX_AGAIN_AT_STEP = 2
"""A loss that comes again more often at the same step is the script's, or its data's."""
HOUR_S = 3600.0


@dataclass(frozen=True)
class LostPlace:
    """Where `rank` was lost. `unusable`: why nothing must run there, or empty.

    `recent`: how often a process was started there for it within the hour; `limit`: how often that may be, 0: never.
    """

    rank: int
    unusable: str
    recent: int
    limit: int
    option: str = "--respawn-limit"
    """What sets the limit."""
    elsewhere: str = ""
    """Where it is to be started in words, if that is not its own place."""


@dataclass(frozen=True)
class Respawn:
    may: bool
    reason: str


def comes_again(rank: int, boundary: int, times: int, ends: Sequence[str] = ()) -> str:
    """Why a rank that was lost so often at the boundary is given to nobody any more, or empty. `ends`: how, each time."""
    if times <= MAX_AGAIN_AT_STEP:
        return ""
    story = f" ({'; '.join(ends)})" if ends else ""
    why = "the script or its data would meet the same end again"
    return f"rank {rank} was lost at step {boundary} {times} times{story}: {why}"


def may_respawn(p: LostPlace) -> Respawn:
    """On a device and machine that are well; not without end."""
    if not p.limit:
        return Respawn(False, "no process is started in the place of a lost one")
    if p.unusable:
        return Respawn(False, f"none is started in its place: {p.unusable}")
    if p.recent >= p.limit:
        times = f"{p.recent} time{'s' * (p.recent > 1)}"
        return Respawn(
            False, f"none is started in its place: that was done {times} within the hour ({p.option} {p.limit})"
        )
    number = f"{p.recent + 1} of {p.limit} within the hour"
    where = p.elsewhere or "in its place"
    return Respawn(True, f"rank {p.rank} waits for a process that is started {where} ({number})")
