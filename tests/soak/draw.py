"""Which fault comes next, and whether the job can take it now. Pure, but for the generator that is drawn from."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass

KILL, STOP, PLANNED, NODE = "kill", "stop", "planned", "node"
PAUSE_S = (2.0, 7.0)
_OFTEN = (KILL, KILL, STOP, PLANNED)


@dataclass(frozen=True)
class Fault:
    """`target`: the rank, or the machine of NODE. It comes `pause_s` after the one before."""

    kind: str
    target: int
    pause_s: float


@dataclass(frozen=True)
class Struck:
    """A rank that was struck, and the furthest boundary that any rank had reached when the job was next asked."""

    rank: int
    boundary: int


def draw(chance: random.Random, ranks: int, machines: int) -> Fault:
    """The same seed gives the same faults; what they meet is the job's."""
    kind = chance.choice((*_OFTEN, NODE) if machines > 1 else _OFTEN)
    return Fault(kind, chance.randrange(machines if kind == NODE else ranks), chance.uniform(*PAUSE_S))


def why_not_now(fault: Fault, promised: bool, boundaries: Sequence[int], whole: bool, struck: Sequence[Struck]) -> str:
    """Empty if it can strike. `promised`: the job says that it is protected; `boundaries`: of the ranks; `whole`: all ranks train,
    there are as many spares as there are to be, and the job says that it is protected against the loss of a machine, too.

    A job may lose half of its ranks at once, and none of them twice at the same step: that is taken for the script's fault.
    """
    if not promised:
        return "the job does not say that it is protected"
    if fault.kind == NODE:
        return "" if whole else "a machine is only lost when the job is whole"
    again = [s for s in struck if s.boundary >= min(boundaries)]
    if any(s.rank == fault.target for s in again):
        return f"rank {fault.target} was struck at this step already"
    if len(again) >= max(len(boundaries) // 2, 1):
        return f"{len(again)} ranks were struck at this step already"
    return ""
