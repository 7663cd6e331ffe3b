"""Decides on which other machine a process is started for a lost rank, where nothing may run any more on its own. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class MachineWithPlaces:
    """A machine, and the places on it where a process can be started. `unusable`: why nothing must be started there, or empty.

    `vacated`: processes that have ended and whose place no other has taken. `has_gpus`: each process has a GPU of its own there, so
    that only a vacated place or one of `free_gpus` is a place. `ranks`: how many live there.
    """

    node: str
    unusable: str = ""
    vacated: Sequence[str] = ()
    has_gpus: bool = False
    ranks: int = 0
    free_gpus: Sequence[str] = ()

    @property
    def places(self) -> list[str]:
        """The places where a process can be started that has a GPU of its own: first those where others have ended."""
        return [*sorted(self.vacated), *self.free_gpus]


@dataclass(frozen=True)
class Elsewhere:
    """The chosen machine. `node` is empty if no machine has a place.

    `in_place_of`: the ended process whose device it gets, or a GPU that is free; empty: none.
    """

    node: str
    in_place_of: str
    reason: str


def choose_machine(rank: int, machines: Sequence[MachineWithPlaces]) -> Elsewhere:
    """Choose a machine.

    One that a process has left goes first, then the one with the fewest ranks. `machines`: all but the lost one.
    """
    with_place = [m for m in machines if not lacks(m)]
    if not with_place:
        barred = "; ".join(f"{m.node}: {lacks(m)}" for m in sorted(machines, key=lambda m: m.node))
        told = f"no other machine has a place for rank {rank} ({barred})" if barred else "there is no other machine"
        return Elsewhere("", "", told)
    chosen = min(with_place, key=lambda m: (not m.vacated, not m.free_gpus, m.ranks, m.node))
    if chosen.places:
        place = chosen.places[0]
        why = f"where {place} has ended" if chosen.vacated else f"whose {place} nobody uses"
        return Elsewhere(chosen.node, place, f"on {chosen.node}, {why}")
    return Elsewhere(chosen.node, "", f"on {chosen.node}, beside its {chosen.ranks}: no GPU bounds how many")


def lacks(m: MachineWithPlaces) -> str:
    """Return why the machine has no place, or empty."""
    return m.unusable or ("each of its GPUs has a process" if m.has_gpus and not m.places else "")


def places(machines: Sequence[MachineWithPlaces], wanted: int) -> int:
    """Return for how many of the `wanted` ranks there is a place."""
    if any(not m.unusable and not m.has_gpus for m in machines):
        return wanted
    return min(wanted, sum(len(m.places) for m in machines if not m.unusable))
