"""What the agent of a machine knows of each process, from its start until no question about it can come any more."""

from __future__ import annotations

from dataclasses import dataclass

from torchrelay.agent.connections.standing import AgentStanding
from torchrelay.protocol.names import NO_RANK, WorkerId


@dataclass
class KnownProcess:
    """What is known of one process. `rank`: NO_RANK for a spare."""

    rank: int
    standing: AgentStanding
    pid: int | None = None
    """The pid that the process says it has: a wrapper may have started it."""
    finishing: bool = False
    excused: bool = False
    """It was told that it may end, while no controller was there."""


class KnownProcesses:
    """All processes that are known, by worker."""

    def __init__(self) -> None:
        self._by_worker: dict[WorkerId, KnownProcess] = {}
        self._ranks_held: set[int] = set()

    def __contains__(self, worker: str) -> bool:
        return worker in self._by_worker

    def __getitem__(self, worker: WorkerId) -> KnownProcess:
        return self._by_worker[worker]

    def get(self, worker: WorkerId) -> KnownProcess | None:
        """Return what is known of a process; None for one that is not known."""
        return self._by_worker.get(worker)

    def begins(self, worker: WorkerId, rank: int) -> None:
        """Take in a process that is about to be started. `rank`: NO_RANK for a spare."""
        self._by_worker[worker] = KnownProcess(rank, AgentStanding(in_force=-1 if rank == NO_RANK else 0))
        self._ranks_held.add(rank)

    def takes_rank(self, worker: WorkerId, rank: int) -> None:
        """Give the process this rank from now on."""
        self._by_worker[worker].rank = rank
        self._ranks_held.add(rank)

    def was_here(self, rank: int) -> bool:
        """Return whether some process of this machine has held the rank."""
        return rank in self._ranks_held

    def forget(self, worker: WorkerId) -> KnownProcess:
        """Drop a process. Return what was known of it."""
        return self._by_worker.pop(worker)

    def standings(self) -> dict[WorkerId, AgentStanding]:
        return {worker: known.standing for worker, known in self._by_worker.items()}

    def ranks(self) -> dict[WorkerId, int]:
        return {worker: known.rank for worker, known in self._by_worker.items()}

    def finishing(self) -> set[WorkerId]:
        """Return the processes that are at their end and were not told yet that they may end."""
        return {worker for worker, known in self._by_worker.items() if known.finishing and not known.excused}

    def said_pid(self, worker: WorkerId) -> int | None:
        """Return the pid that the process says it has; None before it has said so, and for a process that is not known."""
        known = self._by_worker.get(worker)
        return known.pid if known is not None else None

    def with_pid(self, pid: int) -> WorkerId | None:
        """Return which process has said that it has this pid."""
        return next((worker for worker, known in self._by_worker.items() if known.pid == pid), None)
