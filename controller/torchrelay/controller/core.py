"""The controller without its input and output: reports in, orders and events out."""

from __future__ import annotations

import dataclasses
import signal
from collections.abc import Callable

from torchrelay.controller.agent_reports import AgentReports
from torchrelay.controller.checkpoints.checkpoint import JobCheckpoint
from torchrelay.controller.config import ControllerConfig
from torchrelay.controller.containment.aside import Aside
from torchrelay.controller.ending import stop_order
from torchrelay.controller.machines.leading import no_claim
from torchrelay.controller.migration import events as m
from torchrelay.controller.parts import Parts
from torchrelay.controller.restart.fallen import Fallen
from torchrelay.controller.restart.job_restart import RestartPlan
from torchrelay.controller.settling import Settling
from torchrelay.controller.status import JobSummary, aside_status, aside_summary, job_status, job_summary
from torchrelay.controller.user_requests import UserRequests
from torchrelay.protocol import messages as msg
from torchrelay.protocol.events import JobFinished, NodeLost
from torchrelay.protocol.health.policy import HealthPolicy
from torchrelay.protocol.names import EXIT_USAGE


class Core:
    """The core of one job. Calls take the time `now_s` of one monotonic clock; `wall_s` is the time of day.

    `take` returns what is to be sent.
    """

    def __init__(
        self,
        config: ControllerConfig,
        wall_s: Callable[[], float],
        checkpoint: JobCheckpoint | None = None,
        health: HealthPolicy | None = None,
        restart: RestartPlan | None = None,
        claim: Callable[[int, int], bool] = no_claim,
    ) -> None:
        self._config = config
        parts = self._parts = Parts(config, wall_s, checkpoint, health, restart, claim)
        self.job = parts.job
        self.outbox = parts.outbox
        self.driver = parts.driver
        self.health = parts.health
        self.pool = parts.pool
        self.entrance = parts.entrance
        self.gathering = parts.gathering
        self.leading = parts.leading
        self.nodes = parts.nodes
        self.pace = parts.pace
        self._ending = parts.ending
        self._start = parts.start
        self._exits = parts.exits
        self._judge = parts.judge
        self._settling = Settling(parts)
        self._reports = AgentReports(parts, self._settling.settle_soon)
        self.user_requests = UserRequests(
            self.outbox,
            self._ending,
            self._exits,
            parts.planned_moves,
            self._judge,
            self.health,
            self.pool,
            self._settling.settle,
        )
        self._refused: set[str] = set()
        """Nodes that came to a job that trains, and were told to run something else."""

    @property
    def ended(self) -> JobFinished | None:
        return self._ending.ended

    @property
    def fallen(self) -> Fallen | None:
        """Why the job cannot go on in these processes. The maker of this core decides what becomes of the job."""
        return self._ending.fallen

    @property
    def aside(self) -> Aside | None:
        """Set once torchrelay has failed in this job: the job trains on, and nothing is decided for it."""
        return self._ending.aside

    @property
    def found(self) -> msg.CheckpointsFound | None:
        """The checkpoints that an agent has found on disk since the job has fallen."""
        return self._reports.found

    def take(self) -> tuple[list[tuple[str, msg.ToAgent]], list[msg.JobEvent]]:
        """Return orders by node, and events, since the last call."""
        return self.outbox.take()

    def take_hang_ups(self) -> list[str]:
        """Return the nodes that were given up since the last call: their streams are to be closed."""
        taken = self.nodes.to_hang_up
        self.nodes.to_hang_up = []
        return taken

    def attach(self, hello: msg.AgentHello, now_s: float) -> None:
        """Take in an agent that comes for the first time or again."""
        if self.aside is not None and self.ended is None:
            self.aside.attach(hello, now_s)
            return
        if self.nodes.is_lost(hello.node):
            self.nodes.is_back(hello.node)
            return
        compared = self.ended is None and not self._config.adopted
        differs = self._parts.programs.attached(hello.node, hello.program) if compared else ""
        if differs and self._start.has_begun:
            self._refuse(hello.node, differs)
            return
        if self._config.adopted or self._config.takes_over:
            self.job.attach(dataclasses.replace(hello, workers=()), now_s)
            for info in hello.workers:
                self.entrance.take_in(hello.node, info, now_s)
        else:
            self.job.attach(hello, now_s)
        self.leading.attached(hello, now_s)
        self.pace.attached(hello.node)
        if self.leading.stood_down:
            return
        if differs:
            self._ending.end_job(EXIT_USAGE, differs)
        if self.ended is not None:
            self.outbox.orders.append((hello.node, stop_order(self.ended)))
        elif self.gathering is not None and not self.gathering.is_over:
            self.gathering.attached(hello.node)
        else:
            self._start.consider(now_s)

    def _refuse(self, node: str, reason: str) -> None:
        """End the processes of this node only: the job trains already, and goes on without it."""
        self._parts.programs.forget(node)
        self._refused.add(node)
        self.outbox.orders.append((node, msg.StopJob(EXIT_USAGE, int(signal.SIGTERM), reason)))
        self.outbox.log_once("warning", f"{node} takes no part in this job: {reason}")

    def detach(self, node: str, now_s: float) -> None:
        """Take note that the agent's stream has ended; it may come back."""
        if node in self.job.nodes and self.ended is None and not self.job.nodes[node].lost:
            self.job.nodes[node].away_since_s = now_s
            if self.aside is not None:
                return
            if self.gathering is not None:
                self.gathering.detached(node)
            self.outbox.log("warning", f"the agent of {node} is away")

    def receive(self, node: str, message: msg.FromAgent, now_s: float) -> bool:
        """Take in a report of the agent of `node`. Return whether anything may follow from it.

        Reports after the job's end are left out.
        """
        if self.ended is not None or self.nodes.is_lost(node) or node in self._refused:
            return False
        if self.aside is not None:
            self.aside.receive(node, message, now_s)
            return True
        self.nodes.heard(node, now_s)
        if isinstance(message, msg.Progress):
            return self._reports.progressed(node, message, now_s)
        if not isinstance(message, msg.AgentHello):
            self._reports.take(node, message, now_s)
        elif self.fallen is None:
            self.attach(message, now_s)
            self._settling.settle_soon(now_s)
        return True

    def evidence(self, node: str, signals: msg.HealthSignals, now_s: float) -> None:
        """Take in evidence about a node from another source than its agent, such as a cluster.

        It is no sign of life of the agent.
        """
        if not self.is_still and node in self.job.nodes and not self.nodes.is_lost(node) and not self._exits.is_failing:
            self.health.signals(node, signals, now_s)
            self._settling.settle(now_s)

    def spares_changed(self, now_s: float) -> None:
        """Take note that `Job` has changed in what it knows of spares that others make, or start again."""
        if not self.is_still:
            self.driver.feed(m.SpareWarm(), now_s)
            self._settling.settle(now_s)

    def lose(self, node: str, reason: str, now_s: float) -> None:
        """Take note that nothing of `node` lives, as is known from elsewhere."""
        if self.aside is not None:
            self.aside.lose(node, reason)
        elif not self.is_over and self._start.has_begun:
            self.nodes.gone(node, reason, now_s)
            self._settling.settle(now_s)

    def lead(self, request: msg.LeadRequest, now_s: float) -> msg.LeadReply:
        """Answer a command of the job's machines that asks who leads. The command also says what it knows."""
        takes_part = self._start.has_begun or self._config.takes_over
        reply = self.leading.answer(request, takes_part, self.driver.count, now_s)
        return dataclasses.replace(reply, quorum=reply.quorum and not self.is_over)

    def compare(self, program: msg.Program) -> msg.MachinesCompared:
        """Return what differs on a machine that may come to the job."""
        return self._parts.programs.compare(program)

    def tick(self, now_s: float) -> None:
        """Do what is due by the clock. To be called every `tick_every_s`."""
        if self.is_still:
            return
        if not self.leading.is_led:
            self.leading.tick(now_s)
            return
        parts = self._parts
        self._start.tick(now_s)
        self.driver.tick(now_s)
        self._exits.tick(now_s)
        if not self.is_over and not self._exits.is_failing:
            parts.hang_watch.tick(now_s)
            parts.numbers.tick(now_s)
            parts.planned_moves.tick(now_s)
        if not self.is_over and self._start.has_begun and self.job.protection == "on":
            parts.spreading.tick(now_s)
        if not self.is_over and self._start.has_begun:
            self.leading.keep(now_s)
            self.pace.tick(self._settling.stands or self.driver.migration is not None, now_s)
            self.nodes.tick(now_s)
        if not self.is_over and not self._exits.is_failing:
            self.health.tick(now_s)
            if self._reports.came_further:
                self._reports.came_further = False
                self.health.progress(now_s)
        self._settling.settle(now_s)
        if not self.is_over:
            self._lose_missing(now_s)

    def tick_every_s(self, now_s: float) -> float:
        """Return how much time may pass now until the next tick. Any other call may shorten it."""
        return self._settling.tick_every_s(now_s)

    def _lose_missing(self, now_s: float) -> None:
        if self._config.takes_over and self.leading.is_on and self.leading.all_others_are_there:
            self.entrance.others_are_there()
        self.entrance.settle(now_s)
        for worker, exited in self.entrance.take_kept(now_s):
            self._exits.exited(worker, exited, now_s)
        missing = self.entrance.missing(now_s) if self.leading.is_followed(now_s) else []
        if missing:
            self._start.consider(now_s)
            self._settling.settle(now_s)
        for node in sorted({worker.node for worker in missing}):
            self.leading.leave_out(node)
            if self.nodes.is_lost(node):
                ranks = tuple(sorted(worker.rank for worker in missing if worker.node == node))
                self.outbox.emit(NodeLost(node, ranks, 0, self.job.nodes[node].lost))
        for worker in missing:
            reason = f"rank {worker.rank} ({worker.worker}) was lost while no controller was there"
            self._exits.lost_with_node(worker, reason, now_s, now_s)

    def status(self, now_s: float) -> msg.JobStatus:
        if self.aside is not None:
            return aside_status(self._config.run_id, self.job, self.aside.reason)
        lines = self.health.lines()
        spreading = self._parts.spreading
        status = job_status(self._config.run_id, self.job, self.driver, self.pool, self._judge.now(), now_s, lines)
        machines = spreading.reason if self._start.has_begun else self._start.waits
        return dataclasses.replace(status, ranks_spread=spreading.moves, spread_reason=machines)

    def summary(self, now_s: float) -> JobSummary:
        """Return the status as `status` does, of bounded size."""
        if self.aside is not None:
            return aside_summary(self.job, self.aside.reason)
        lately = self._judge.lately(now_s)
        return job_summary(self.job, self.driver, lately.level, lately.reason)

    def coverage(self, now_s: float) -> msg.Coverage | None:
        """Return how far the job is protected; None once torchrelay has failed in it. Its times may be some seconds old."""
        return self._judge.lately(now_s) if self.aside is None else None

    def end_job(self, exit_code: int, reason: str) -> None:
        """End the job on all nodes. If it is called more than once, the first reason counts."""
        self._ending.end_job(exit_code, reason)

    def hand_over(self, reason: str) -> None:
        """End the processes here, but not the agents: the job begins again elsewhere."""
        self._ending.hand_over(reason)

    def set_aside(self, reason: str, now_s: float) -> None:
        """Decide nothing for this job any more: torchrelay has failed in it, so what is known of it may be wrong."""
        migration = self.driver.migration
        self._ending.set_aside(reason, migration.state if migration is not None else None, now_s)

    @property
    def is_over(self) -> bool:
        """Whether nothing of this job goes on in these processes."""
        return self._ending.is_over

    @property
    def is_still(self) -> bool:
        """Whether nothing is decided any more."""
        return self._ending.is_still
