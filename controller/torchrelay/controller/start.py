"""Decides when a job begins: once all processes and machines are there that it waits for."""

from __future__ import annotations

from torchrelay.controller.checkpoints.checkpoint import JobCheckpoint
from torchrelay.controller.config import ControllerConfig
from torchrelay.controller.decide.detection.silence import fenced_after_s
from torchrelay.controller.ending import Ending
from torchrelay.controller.execution.driver import Driver
from torchrelay.controller.outbox import Outbox
from torchrelay.controller.picture.job import Job
from torchrelay.controller.processes.admission import Entrance
from torchrelay.controller.processes.programs import Programs
from torchrelay.controller.restart.begin_anew import BeginningAnew
from torchrelay.controller.restart.machine_wait import MachineWait
from torchrelay.protocol.events import JobStarted


class JobStart:
    """The start of a job. `checkpoint`: what all ranks enter from as soon as the job begins, if it resumes."""

    def __init__(
        self,
        config: ControllerConfig,
        checkpoint: JobCheckpoint | None,
        job: Job,
        outbox: Outbox,
        ending: Ending,
        driver: Driver,
        entrance: Entrance,
        programs: Programs,
    ) -> None:
        self._config = config
        self._checkpoint = checkpoint
        self._job = job
        self._outbox = outbox
        self._driver = driver
        self._entrance = entrance
        respawns = driver.spares.respawns
        self._machine_wait = MachineWait(
            config,
            job,
            outbox,
            respawns,
            programs.resume_commands,
            ending.end_job,
            fenced_after_s(config.lease_s),
        )
        self._beginning = BeginningAnew(config, job, outbox, respawns, self._machine_wait, ending.end_job)
        self.has_begun = False

    @property
    def waits(self) -> str:
        """The machines that it waits for, and for how long still; empty if it does not wait for any."""
        return self._machine_wait.waits

    def tick(self, now_s: float) -> None:
        """Look whether to wait on, until the job has begun."""
        if not self.has_begun:
            self._machine_wait.tick(now_s)
            self._beginning.tick()
            self.consider(now_s)

    def consider(self, now_s: float) -> None:
        """Begin, if all processes and machines are there."""
        config = self._config
        job = self._job
        complete = len(job.holders) == job.world_size or self._driver.checkpoint is not None
        there = config.takes_over or len(job.nodes) >= config.nnodes  # some may be gone since it began
        there = (there or self._machine_wait.goes_without) and self._beginning.is_over
        if self.has_begun or not complete or not there:
            return
        self.has_begun = True
        if config.takes_over:
            return  # who watches has been told by the one before
        nodes = tuple(sorted(job.nodes))
        spares = max(len(job.workers) - config.world_size, 0)
        holders = tuple(job.holders.get(rank, "") for rank in range(config.world_size))
        self._outbox.emit(JobStarted(config.run_id, config.world_size, spares, nodes, holders))
        if self._checkpoint is not None:
            self._driver.resume(self._checkpoint, config.resume_dir, now_s)

    def resume(self, checkpoint: JobCheckpoint, directory: str, now_s: float) -> None:
        """Let the processes of a job that begins again enter from a just-in-time checkpoint. All of them are there."""
        self._entrance.resumes = True
        self._driver.checkpoint = checkpoint
        self.consider(now_s)
        self._driver.resume(checkpoint, directory, now_s)
