"""The machines of a job that is struck: which are there, what they have told, and the one that comes back."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from soak import draw as d
from soak.hand import Hand
from support.machines import Fleet, descendants, worker_of
from support.network import Network
from support.relay_run import read_events

NOTICED_S = 30.0
"""A machine that is lost, or cut off, is back after so long, whether the other one has gone on without it or not."""
ENDED_S = 90.0
"""For a machine that was given up to end its command, once it hears of it."""


@dataclass(frozen=True)
class Out:
    """A machine that was lost, or cut off. `before`: how often the job had gone on by then, as each machine knew."""

    kind: str
    machine: int
    since_s: float
    before: tuple[int, ...]


class Machines:
    def __init__(self, fleet: Fleet, hand: Hand) -> None:
        self._fleet, self._hand = fleet, hand
        self._lives = [1] * len(fleet.commands)
        self._out: Out | None = None

    @property
    def one_is_out(self) -> bool:
        return self._out is not None

    @property
    def run(self) -> bool:
        """Whether the job goes on somewhere."""
        return any(command.poll() is None for command in self._fleet.commands)

    def ranks(self, status: dict[str, Any] | None) -> dict[int, int]:
        """The process of each rank: as the job says; where it says nothing, those that began with one."""
        if status is not None:
            return {r["rank"]: r["pid"] for r in status["ranks"] if r["pid"] > 0}
        there = (pid for command in self._fleet.commands for pid in descendants(command.pid) if worker_of(pid))
        return {rank: pid for pid in there if (rank := _rank_of(pid)) >= 0}

    def gone_on(self) -> tuple[int, ...]:
        """How often each machine knows that the job has gone on after a loss."""
        if len(self._lives) == 1:
            return (0,)
        names = ("node_lost", "migration_finished", "job_restarted", "job_fell")
        return tuple(sum(e["name"] in names for e in told) for told in self._told_by_machine())

    def lost(self, fault: d.Fault, before: tuple[int, ...]) -> None:
        if len(self._lives) > 1 and (fault.kind != d.CUT or self._hand.cut is not None):
            self._out = Out(fault.kind, fault.target, time.monotonic(), before)

    def tend(self, now_s: float) -> None:
        """Starts the command of a machine again that the other one has given up, or that was cut off and has ended."""
        if self._out is None:
            return
        waited_s = now_s - self._out.since_s
        noticed = waited_s > NOTICED_S or any(n > b for n, b in zip(self.gone_on(), self._out.before))
        if self._hand.cut is not None:
            if noticed:
                self._hand.mend_cut()
                self._out = Out(self._out.kind, self._out.machine, now_s, self._out.before)
            return
        codes = [command.poll() for command in self._fleet.commands]
        if None not in codes:
            self._out = None  # nobody is left whom it could join
            return
        ended = [machine for machine, code in enumerate(codes) if code is not None]
        if ended and noticed:
            self._out = None
            for machine in (m for m in ended if codes[m] != 0):
                self._start(machine)
        elif not ended and waited_s > ENDED_S:
            self._out = None  # a cut that cost nobody anything

    def told(self) -> list[list[dict[str, Any]]]:
        return self._told_by_machine()

    def doors(self, network: Network | None) -> Iterator[Sequence[str]]:
        """In front of a command that asks the job, for each machine that is there."""
        if network is None:
            yield []
            return
        for machine, command in enumerate(self._fleet.commands):
            if command.poll() is None and machine != self._hand.cut:
                yield network.inside(machine)

    def _start(self, machine: int) -> None:
        name = "+" * self._lives[machine]
        self._lives[machine] += 1
        self._fleet.commands[machine] = self._fleet.start(machine, name)

    def _told_by_machine(self) -> list[list[dict[str, Any]]]:
        return [
            [e for life in range(lives) for e in read_events(self._fleet.events_file(machine, "+" * life))]
            for machine, lives in enumerate(self._lives)
        ]


def _rank_of(pid: int) -> int:
    """-1 for a process that began without one."""
    try:
        entries = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    except OSError:
        return -1
    return next((int(e.partition(b"=")[2]) for e in entries if e.startswith(b"RANK=")), -1)
