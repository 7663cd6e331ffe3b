"""A job that is started anew on several machines waits for all of them, for a while."""

from __future__ import annotations

from collections.abc import Callable

from torchrelay.controller.config import ControllerConfig
from torchrelay.controller.decide.replacement.elsewhere import places
from torchrelay.controller.decide.restart.wait_for_machines import MissingMachines, WaitAnswer, judge_wait
from torchrelay.controller.outbox import Outbox
from torchrelay.controller.picture.job import Job
from torchrelay.controller.replacement.respawns import Respawns
from torchrelay.protocol.names import EXIT_NO_SPARE_LEFT


class MachineWait:
    """`resume_commands(directory)`: by machine; `end_job(exit_code, reason)` ends the job.

    `least_s`: by then a machine that is cut off has ended its processes.
    """

    def __init__(
        self,
        config: ControllerConfig,
        job: Job,
        outbox: Outbox,
        respawns: Respawns,
        resume_commands: Callable[[str], dict[str, str]],
        end_job: Callable[[int, str], None],
        least_s: float,
    ) -> None:
        self._config = config
        self._job = job
        self._outbox = outbox
        self._respawns = respawns
        self._resume_commands = resume_commands
        self._end_job = end_job
        self._limit_s = max(config.machine_wait_s, least_s) if config.machine_wait_s else 0.0
        self._since_s: float | None = None
        self.goes_without = False
        """The job begins with the machines that are there."""
        self.may_begin = False
        self.waits = ""
        """For whom, and for how long still; empty if it does not wait."""

    def tick(self, now_s: float) -> None:
        """To be called until the job begins."""
        config = self._config
        job = self._job
        if not config.restarts_done or config.adopted or config.nnodes < 2 or not job.nodes:
            return
        self._since_s = now_s if self._since_s is None else self._since_s
        verdict = judge_wait(self._missing(now_s - self._since_s))
        self.waits = verdict.now if verdict.answer is WaitAnswer.WAIT else ""
        self.may_begin = verdict.answer in (WaitAnswer.BEGIN, WaitAnswer.BEGIN_WITHOUT)
        if verdict.answer is WaitAnswer.WAIT:
            self._outbox.log_once("warning", verdict.reason)
        elif verdict.answer is WaitAnswer.BEGIN_WITHOUT:
            self._outbox.log("warning", verdict.reason)
            self.goes_without = True
        elif verdict.answer is WaitAnswer.END:
            commands = self._resume_commands(config.resume_dir) if config.resume_dir else {}
            self._end_job(
                EXIT_NO_SPARE_LEFT,
                "; ".join([verdict.reason, *(f"go on with, on {n}: {c}" for n, c in commands.items())]),
            )

    def _missing(self, waited_s: float) -> MissingMachines:
        config = self._config
        job = self._job
        there = {node.node_rank for node in job.nodes.values() if node.away_since_s is None}
        missing = tuple(rank for rank in range(config.nnodes) if rank not in there)
        living = sum(w.alive and job.nodes[w.node].away_since_s is None for w in job.workers.values())
        lacking = max(job.world_size - living, 0)
        found = places(self._respawns.machines_with_places(to_enter=True), lacking)
        # The ranks of a machine that has not come are not known.
        barred = "the files that the script imports are not the same on all machines" if job.imports_differ else ""
        return MissingMachines(missing, waited_s, self._limit_s, lacking, found, barred)
