"""How many spares does a job need, and which pods are too many?"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class SparePod:
    """`took_over`: it holds a rank by now, in one of its processes at least. `warm`: it could take one over, in each of them.
    `barred`: why its place must not be used, or empty. `ended`: its processes were there, and none lives."""

    name: str
    over: bool
    leaves: bool
    took_over: bool
    warm: bool
    barred: str = ""
    ended: bool = False


@dataclass(frozen=True)
class SpareChange:
    """`create` pods more, and `delete` these, with the reason for either."""

    create: int
    delete: tuple[str, ...]
    reason: str


def keep_spares(
    pods: Sequence[SparePod],
    wanted: int,
    job_runs: bool,
    can_be_protected: bool,
    parked: Sequence[str] = (),
    all_known: bool = True,
) -> SpareChange:
    """`job_runs`: some rank lives; `can_be_protected`: protection has not been refused.

    `parked`: pods that had ranks, and could take over others now, or soon: they are spares, too. `all_known`: whether this
    controller has heard of each process; before, a spare that has a rank by now looks like one that is too many.
    """
    there = [p for p in pods if not p.leaves]
    done = tuple(p.name for p in there if p.over)
    free = [p for p in there if not p.over and not p.took_over]
    if not job_runs:
        return SpareChange(0, done + tuple(p.name for p in free), "the job does not run")
    if not can_be_protected:
        return SpareChange(0, done + tuple(p.name for p in free), "the job cannot be protected, so no spare is of use")
    barred = tuple(p.name for p in free if p.barred)
    usable = [p for p in free if not p.barred]
    missing = wanted - len(usable) - len(parked)
    if missing > 0:
        why = f"; {len(barred)} cannot be used: {next(p.barred for p in free if p.barred)}" if barred else ""
        return SpareChange(
            missing, done + barred, f"{wanted} spares are wanted, {len(usable) + len(parked)} are there{why}"
        )
    if not all_known:
        return SpareChange(0, done + barred, "not all processes have told this controller what they are")
    # Cold ones go first: what is warm has cost something, and what has ended is worth the least.
    surplus = sorted(usable, key=lambda p: (p.warm, not p.ended, p.name))[: len(usable) - wanted]
    return SpareChange(
        0, done + barred + tuple(p.name for p in surplus), f"{wanted} spares are wanted, {len(usable)} are there"
    )
