"""May a process that was lost be started again in its place?"""

from __future__ import annotations

from dataclasses import dataclass

MAX_AGAIN_AT_STEP = 2
"""A loss that comes again more often at the same step is the script's, or its data's."""
HOUR_S = 3600.0


@dataclass(frozen=True)
class Place:
    """Where `rank` was lost, at `boundary`. `unusable`: why nothing must run there, or empty.

    `recent`: how often a process was started there for it within the hour; `limit`: how often that may be, 0: never.
    `at_step`: how often the rank has been lost at this boundary, this time included.
    """

    rank: int
    boundary: int
    unusable: str
    recent: int
    limit: int
    at_step: int
    option: str = "--respawn-limit"
    """What sets the limit."""


@dataclass(frozen=True)
class Respawn:
    may: bool
    reason: str


def comes_again(rank: int, boundary: int, times: int) -> str:
    """Why a rank that was lost so often at the boundary is given to nobody any more, or empty."""
    if times <= MAX_AGAIN_AT_STEP:
        return ""
    return (
        f"rank {rank} was lost at step {boundary} {times} times: the script or its data would meet the same end again"
    )


def may_respawn(p: Place) -> Respawn:
    """On a device and machine that are well; not without end."""
    if not p.limit:
        return Respawn(False, "no process is started in the place of a lost one")
    if p.unusable:
        return Respawn(False, f"none is started in its place: {p.unusable}")
    if p.at_step > MAX_AGAIN_AT_STEP:
        why = "the script or its data would meet the same end again"
        return Respawn(
            False, f"none is started in its place: it was lost at step {p.boundary} {p.at_step} times, {why}"
        )
    if p.recent >= p.limit:
        times = f"{p.recent} time{'s' * (p.recent > 1)}"
        return Respawn(
            False, f"none is started in its place: that was done {times} within the hour ({p.option} {p.limit})"
        )
    return Respawn(True, f"rank {p.rank} waits for a process that is started in its place")
