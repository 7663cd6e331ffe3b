"""A process that others have started, with the environment of a rank: is it that rank, or a spare?"""

from __future__ import annotations

from dataclasses import dataclass

from torchrelay.protocol.names import NO_RANK


@dataclass(frozen=True)
class Applicant:
    """`rank`: of its environment; NO_RANK for a spare pod. `holder`: who has the rank, or empty; `holder_alive`: whether it lives.

    `pending`: the job is not protected yet, so that nobody could have taken the rank over.
    """

    worker: str
    rank: int
    world_size: int
    holder: str
    holder_alive: bool
    pending: bool


@dataclass(frozen=True)
class Admission:
    """`rank` is NO_RANK for a spare."""

    rank: int
    reason: str


def admit(a: Applicant) -> Admission:
    if a.rank == NO_RANK:
        return Admission(NO_RANK, f"{a.worker} is a spare")
    if not 0 <= a.rank < a.world_size:
        return Admission(
            NO_RANK,
            f"{a.worker} says that it has rank {a.rank}, but the job has ranks 0 to {a.world_size - 1}: it is a spare",
        )
    if not a.holder:
        return Admission(a.rank, f"{a.worker} is rank {a.rank}")
    if not a.holder_alive and a.pending:
        return Admission(
            a.rank, f"{a.worker} is rank {a.rank} in place of {a.holder}, which ended before training began"
        )
    return Admission(NO_RANK, f"rank {a.rank} is {a.holder}'s; {a.worker}, which was started for it again, is a spare")
