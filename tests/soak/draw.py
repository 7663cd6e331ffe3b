"""Which fault comes next, and whether the job can take it now. Pure, but for the generator that is drawn from."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass

KILL, CRASH, STOP, PAUSE = "kill", "crash", "stop", "pause"
SPIN, DEADLOCK, LONELY, PARTITION = "spin", "deadlock", "lonely", "partition"
RAISE, EXIT = "raise", "exit"
HALF, ALL = "half", "all"
PLANNED, SPARE, CONTROLLER, DEVICE, FOLDER = "planned", "spare", "controller", "device", "folder"
AGENT, NODE, CUT = "agent", "node", "cut"
SIGNALLED = (KILL, CRASH, STOP, PAUSE)
ORDERED = (SPIN, DEADLOCK, LONELY, PARTITION, RAISE, EXIT)
"""The rank itself does these, at a place of its step."""
OF_MACHINES = (NODE, AGENT, CUT)
HANGING = (STOP, SPIN, DEADLOCK, LONELY, PARTITION)
"""Before its first step such a rank is left to the time-out of its process group, as under torchrun."""
HARMLESS = (PLANNED, SPARE, FOLDER)
"""Nobody is lost by these who trains."""
PLACES = ("head", "data", "forward", "backward", "update", "behind")
PAUSE_S = (2.0, 7.0)
MOST_SPARES = 4
"""Of spares that come to nothing, torchrelay replaces six an hour."""
MOST_AT_STEP = 2
"""A third loss at the same step is taken for the script's fault."""
CONTROLLER_LIVES_S = 15.0
"""Controllers that end sooner, one after another, are taken for broken."""


@dataclass(frozen=True)
class Fault:
    """`target`: the rank, or the machine of OF_MACHINES. `place`: where in its step, for those of ORDERED.

    It comes `pause_s` after the one before.
    """

    kind: str
    target: int
    pause_s: float
    place: str = ""

    @property
    def may_cost(self) -> bool:
        """A rank, or all of them where they cannot do without a controller; a rank that pauses may be taken for one that hangs."""
        return self.kind not in HARMLESS


@dataclass(frozen=True)
class Struck:
    """A rank that was struck, and the furthest boundary that any rank had reached when the job was next asked."""

    rank: int
    boundary: int


@dataclass(frozen=True)
class Seen:
    """The job, as it was told last. `promised`: it says that it is protected; `whole`: all ranks train, and there are as many
    spares as there are to be, and all machines; `boundaries`: of the ranks. `led_s`: how long its controller has been there.

    `since_progress`: strikes that may have cost a rank since a step was last done by all.
    """

    promised: bool
    whole: bool
    boundaries: Sequence[int]
    spares: int = 1
    led_s: float = CONTROLLER_LIVES_S
    since_progress: int = 0


def draw(chance: random.Random, kinds: Sequence[str], ranks: int, machines: int) -> Fault:
    """The same seed gives the same faults; what they meet is the job's. `kinds`: each as often as it is to come."""
    kind = chance.choice(kinds)
    target = chance.randrange(machines if kind in OF_MACHINES else ranks)
    pause_s, place = chance.uniform(*PAUSE_S), chance.choice(PLACES) if kind in ORDERED else ""
    return Fault(kind, target, pause_s, place)


def why_not_now(fault: Fault, seen: Seen, struck: Sequence[Struck], counts: dict[str, int], waits: bool) -> str:
    """Empty if it can strike. `waits`: only what the job has promised to survive without a restart.

    Then it may lose half of its ranks at once, and none of them twice at the same step. Else it may lose whatever it has, as
    long as that is not taken for the script's fault.
    """
    if fault.kind == SPARE and (counts.get(SPARE, 0) >= MOST_SPARES or not seen.spares):
        return "there is no spare that may be lost"
    if fault.kind == CONTROLLER and seen.led_s < CONTROLLER_LIVES_S:
        return "the controller has only just begun"
    if fault.kind in HANGING and min(seen.boundaries, default=0) < 1:
        return "not every rank has done a step"
    if waits:
        return _not_promised(fault, seen, struck)
    if fault.may_cost and seen.since_progress >= MOST_AT_STEP:
        return f"{seen.since_progress} strikes since a step was done"
    if fault.kind in ORDERED and not seen.boundaries:
        return "no rank trains"
    return "" if fault.kind not in OF_MACHINES or seen.whole else "a machine is only lost when the job is whole"


def _not_promised(fault: Fault, seen: Seen, struck: Sequence[Struck]) -> str:
    if not seen.promised:
        return "the job does not say that it is protected"
    if fault.kind in OF_MACHINES:
        return "" if seen.whole else "a machine is only lost when the job is whole"
    if not fault.may_cost or fault.kind == CONTROLLER:
        return ""
    again = [s for s in struck if s.boundary >= min(seen.boundaries)]
    half = max(len(seen.boundaries) // 2, 1)
    if fault.kind == HALF and again:
        return f"{len(again)} ranks were struck at this step already"
    if any(s.rank == fault.target for s in again):
        return f"rank {fault.target} was struck at this step already"
    return f"{len(again)} ranks were struck at this step already" if len(again) >= half else ""
