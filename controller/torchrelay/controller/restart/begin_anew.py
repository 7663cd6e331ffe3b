"""Starts scripts on several machines again from their beginning, once it is clear on which machines."""

from __future__ import annotations

from collections.abc import Callable

from torchrelay.controller.config import ControllerConfig
from torchrelay.controller.migration.events import SpareChosen
from torchrelay.controller.outbox import Outbox
from torchrelay.controller.picture.job import Job
from torchrelay.controller.picture.worker import Worker
from torchrelay.controller.replacement.respawns import Respawns
from torchrelay.controller.restart.machine_wait import MachineWait
from torchrelay.protocol.launch_env import torchrun_env
from torchrelay.protocol.messages import Begin
from torchrelay.protocol.names import EXIT_NO_SPARE_LEFT, NO_RANK


class BeginningAnew:
    """Every process waits in front of its script for `Begin`. A script that has begun could only wait for a machine that is gone.

    A program without the shim does not wait; it takes its rank from its environment, as with torchrun.
    """

    def __init__(
        self,
        config: ControllerConfig,
        job: Job,
        outbox: Outbox,
        respawns: Respawns,
        machine_wait: MachineWait,
        end_job: Callable[[int, str], None],
    ) -> None:
        self._config = config
        self._job = job
        self._outbox = outbox
        self._respawns = respawns
        self._machine_wait = machine_wait
        self._end_job = end_job
        self.is_over = not config.parks_scripts

    def tick(self) -> None:
        """Look whether the scripts can begin. To be called until it is over."""
        if self.is_over or not self._machine_wait.may_begin:
            return
        missing = [rank for rank in range(self._job.world_size) if not self._is_there(rank)]
        waits = [rank for rank in missing if not self._fill(rank)]
        if not waits:
            self.is_over = True
            self._begin()

    def _is_there(self, rank: int) -> bool:
        job = self._job
        return rank in job.holders and job.nodes[job.holder(rank).node].away_since_s is None

    def _fill(self, rank: int) -> bool:
        """Give the rank of a missing machine to a spare, or to a process that is started for it.

        Return False if that is to come.
        """
        if (spare := self._spare()) is not None:
            self._give(rank, spare)
            return True
        answer = self._respawns.process_to_enter(rank)
        if isinstance(answer, SpareChosen):
            self._give(rank, self._job.workers[answer.worker])
            return True
        if not answer.soon:
            self._end_job(EXIT_NO_SPARE_LEFT, f"the script cannot be started again: {answer.reason}")
        return False

    def _spare(self) -> Worker | None:
        job = self._job
        there = [w for w in job.spares if w.started_for == NO_RANK and job.nodes[w.node].away_since_s is None]
        return min(there, key=lambda w: w.worker, default=None)

    def _give(self, rank: int, worker: Worker) -> None:
        if rank in self._job.holders:
            self._job.holder(rank).rank = NO_RANK
        worker.rank = rank
        self._job.holders[rank] = worker.worker
        self._outbox.log("info", f"{worker.worker} on {worker.node} begins as rank {rank}, whose machine is missing")

    def _begin(self) -> None:
        job = self._job
        config = self._config
        first = job.holder(0)
        at_home = job.nodes[first.node].node_rank == 0
        master = config.master_addr if at_home else job.nodes[first.node].host
        for rank, name in sorted(job.holders.items()):
            env = torchrun_env(
                rank,
                world_size=job.world_size,
                nproc_per_node=config.nproc_per_node,
                master_addr=master,
                master_port=config.master_port,
                run_id=config.run_id,
                restarts=config.scripts_begun,
            )
            self._outbox.to_worker(name, Begin(name, "", False, env))
