"""The checks of a job's machines meet: each is compared with the others until all are there, and all know it."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

from torchrelay.controller.decide.restart.same_program import compared_with
from torchrelay.protocol.messages import MachinesCompared, Program

GONE_S = 5.0
"""A check asks every second. One that has not for so long has ended."""


@dataclass(frozen=True)
class _Visit:
    program: Program
    came_s: float


class ChecksMeeting:
    """The checks that are there. Once there is one of each machine, nobody is missed any more."""

    def __init__(self, nnodes: int) -> None:
        self._nnodes = nnodes
        self._there: dict[str, _Visit] = {}
        """By `Program.check`."""
        self._told: set[str] = set()
        self._doubled_s: dict[str, float] = {}
        """Machines of which there was more than one, and when the other one has asked last."""

    @property
    def is_whole(self) -> bool:
        """Return whether there is a check of each machine."""
        return len(self._there) >= self._nnodes

    @property
    def is_over(self) -> bool:
        """Return whether each of them has been told so."""
        return self.is_whole and self._told >= self._there.keys()

    def compare(self, program: Program, now_s: float) -> MachinesCompared:
        """Take in the check of a machine, and compare it with those of others that are there."""
        if not self.is_whole:
            self._there = {check: v for check, v in self._there.items() if now_s - v.came_s < GONE_S}
        same_name = [check for check, v in self._there.items() if v.program.node == program.node]
        if same_name and same_name != [program.check]:
            self._doubled_s[program.node] = now_s
        else:
            self._there[program.check] = _Visit(program, now_s)
            self._told |= {program.check} if self.is_whole else set()
        others = {v.program.node: v.program for v in self._there.values() if v.program.node != program.node}
        found = compared_with(others, program)
        if now_s - self._doubled_s.get(program.node, -GONE_S) < GONE_S:
            doubled = f"two machines have come as {program.node}: give each machine its own --node-rank"
            found = dataclasses.replace(found, refused=(doubled, *found.refused))
        return found
