"""Processes that are started in the midst of a job: in the place of lost ones, as new spares, and to rehearse where no spare is."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import BinaryIO

from torchrelay.agent.config import AgentConfig
from torchrelay.agent.processes.giving_way import GivingWay
from torchrelay.agent.processes.launch import WorkerSpec, late_rank_spec, late_spare_spec, rehearser_spec
from torchrelay.agent.processes.supervise import Supervisor
from torchrelay.protocol.errors import TorchrelayError
from torchrelay.protocol.machine.memory_left import no_room_for, taken_by
from torchrelay.protocol.messages import LateWorker, RehearserStarted, StartWorker
from torchrelay.protocol.names import NO_RANK, WorkerId

_LOWEST = 19


class LateProcesses:
    """Starts them. `enrol` makes ready for a process, and returns where its output goes; it may raise TorchrelayError or OSError.

    `no_room(pid)` says why there is no memory for as much again as process `pid` has (0: for none).
    """

    def __init__(
        self,
        config: AgentConfig,
        environ: Mapping[str, str],
        supervisor: Supervisor,
        enrol: Callable[[WorkerSpec], dict[int, BinaryIO]],
        giving_way: GivingWay,
        no_room: Callable[[int], str] = lambda pid: no_room_for(taken_by(pid)),
    ) -> None:
        self._no_room = no_room
        self._config = config
        self._environ = environ
        self._supervisor = supervisor
        self._enrol = enrol
        self._taking_over = self._spares = self._rehearsals = 0
        self.spares_more = 0
        """How many spares this node is to have beyond those that it began with."""
        self._giving_way = giving_way
        self.latest = WorkerId("")
        self.rehearsers: set[WorkerId] = set()
        """The rehearsing processes that have not ended."""

    def living_rehearsers(self) -> list[WorkerId]:
        return [c.spec.worker for c in self._supervisor.living() if c.spec.worker in self.rehearsers]

    def take_over(self, order: StartWorker, *, is_more: bool) -> LateWorker:
        """Start a process beyond those that the job began with: for a rank that starts over or was lost, or as a spare.

        `is_more`: whether there will be one process more than there were, so that there has to be memory for it.
        """
        if order.rank == NO_RANK:
            spec = late_spare_spec(self._config, self._environ, self._spares)
            self._spares += 1
        else:
            spec = late_rank_spec(self._config, self._environ, self._taking_over)
            self._taking_over += 1
        self.latest = spec.worker
        if is_more and (reason := self._no_room(self._largest())):
            return LateWorker(spec.worker, order.rank, 0, reason, order.in_place_of)
        pid, reason = self._start(spec, 0)
        self.spares_more += bool(pid) and order.more
        if pid and order.idle:
            self._giving_way.until_needed(spec.worker, pid)
        return LateWorker(spec.worker, order.rank, pid, reason, order.in_place_of)

    def _largest(self) -> int:
        """Return the process that has the most memory; 0 if there is none."""
        return max((c.process.pid for c in self._supervisor.living()), key=taken_by, default=0)

    def ended(self, worker: WorkerId) -> None:
        self.rehearsers.discard(worker)

    def rehearse(self, beside: int) -> RehearserStarted:
        """Start a process that may need as much memory as process `beside` has, if that is not 0."""
        spec = rehearser_spec(self._config, self._environ, self._rehearsals)
        self._rehearsals += 1
        if reason := self._no_room(beside):
            return RehearserStarted(spec.worker, 0, reason)
        # In a check nobody trains while it rehearses, so it need not give way.
        pid, reason = self._start(spec, 0 if self._config.check_steps else _LOWEST)
        if pid:
            self.rehearsers.add(spec.worker)
        return RehearserStarted(spec.worker, pid, reason)

    def _start(self, spec: WorkerSpec, niceness: int) -> tuple[int, str]:
        """Start a process. Return its pid, or 0 and the reason."""
        try:
            self._supervisor.start_late(spec, self._enrol(spec), niceness)
        except (TorchrelayError, OSError) as e:
            return 0, str(e)
        return self._supervisor.children[spec.worker].process.pid, ""
