"""Somebody wants more spares than the job began with: on which machines are they made? Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from torchrelay.controller.decide.replacement.elsewhere import MachineWithPlaces, lacks


@dataclass(frozen=True)
class MachineForSpares:
    """`spares`: how many it is to have already; `missing`: how many of those are not there, and will take a place first."""

    machine: MachineWithPlaces
    spares: int = 0
    missing: int = 0

    @property
    def room(self) -> float:
        """For how many more. Without GPUs memory alone bounds it, which its agent looks at before it starts one."""
        m = self.machine
        if m.unusable:
            return 0
        return max(0, len(m.places) - self.missing) if m.has_gpus else float("inf")


@dataclass(frozen=True)
class MoreSpares:
    """`nodes`: how many are made where; empty if not all of them have a place, for `reason`."""

    nodes: Counter[str]
    reason: str = ""


def place_more(count: int, machines: Sequence[MachineForSpares]) -> MoreSpares:
    """All of them or none. Each goes where the fewest are."""
    chosen: Counter[str] = Counter()
    for number in range(count):
        free = [m for m in machines if m.room > chosen[m.machine.node]]
        if not free:
            why = "; ".join(f"{m.machine.node}: {lacks(m.machine) or _full(m)}" for m in machines)
            most = f"only {number} more" if number else "no further one"
            return MoreSpares(
                Counter(), f"{most} has a place ({why})" if number < 2 else f"{most} have a place ({why})"
            )
        least = min(free, key=lambda m: (m.spares + chosen[m.machine.node], m.machine.node))
        chosen[least.machine.node] += 1
    return MoreSpares(chosen)


def _full(m: MachineForSpares) -> str:
    return f"{len(m.machine.places)} of its GPUs are free, and {m.missing} of them for spares that are missing"
