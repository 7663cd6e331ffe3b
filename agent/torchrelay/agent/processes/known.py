"""What the agent of a machine knows of each process, from its start until nobody can ask for it any more."""

from __future__ import annotations

from dataclasses import dataclass

from torchrelay.agent.connections.standing import AgentStanding
from torchrelay.protocol.names import NO_RANK, WorkerId


@dataclass
class KnownProcess:
    """`rank`: NO_RANK of a spare."""

    rank: int
    standing: AgentStanding
    pid: int | None = None
    """What it says that it is: a wrapper may have started it."""
    finishing: bool = False
    excused: bool = False
    """It was told that it may end, while no controller was there."""


class KnownProcesses:
    """By worker."""

    def __init__(self) -> None:
        self._by_worker: dict[WorkerId, KnownProcess] = {}
        self._ranks_held: set[int] = set()

    def __contains__(self, worker: str) -> bool:
        return worker in self._by_worker

    def __getitem__(self, worker: WorkerId) -> KnownProcess:
        return self._by_worker[worker]

    def get(self, worker: WorkerId) -> KnownProcess | None:
        """None of one that is not known."""
        return self._by_worker.get(worker)

    def begins(self, worker: WorkerId, rank: int) -> None:
        """It is about to be started; `rank`: NO_RANK as a spare."""
        self._by_worker[worker] = KnownProcess(rank, AgentStanding(in_force=-1 if rank == NO_RANK else 0))
        self._ranks_held.add(rank)

    def takes_rank(self, worker: WorkerId, rank: int) -> None:
        """The process holds this rank from now on."""
        self._by_worker[worker].rank = rank
        self._ranks_held.add(rank)

    def was_here(self, rank: int) -> bool:
        """Whether some process of this machine has held the rank."""
        return rank in self._ranks_held

    def forget(self, worker: WorkerId) -> KnownProcess:
        """Return what was known of it."""
        return self._by_worker.pop(worker)

    def standings(self) -> dict[WorkerId, AgentStanding]:
        return {worker: known.standing for worker, known in self._by_worker.items()}

    def ranks(self) -> dict[WorkerId, int]:
        return {worker: known.rank for worker, known in self._by_worker.items()}

    def finishing(self) -> set[WorkerId]:
        """Those at their end that were not told yet that they may end."""
        return {worker for worker, known in self._by_worker.items() if known.finishing and not known.excused}

    def said_pid(self, worker: WorkerId) -> int | None:
        """What the process says that it is; None before it has, and of one that is not known."""
        known = self._by_worker.get(worker)
        return known.pid if known is not None else None

    def with_pid(self, pid: int) -> WorkerId | None:
        """Which process has said that it is this one."""
        return next((worker for worker, known in self._by_worker.items() if known.pid == pid), None)
