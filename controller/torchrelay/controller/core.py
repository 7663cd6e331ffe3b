"""The controller without its input and output: reports in, orders and events out."""

from __future__ import annotations

import dataclasses
import math
import signal
from collections.abc import Callable

from torchrelay.controller.checkpoints.checkpoint import JobCheckpoint
from torchrelay.controller.checkpoints.peer_copies import Buddies
from torchrelay.controller.config import ControllerConfig
from torchrelay.controller.containment.aside import Aside
from torchrelay.controller.coverage.anomalies import AnomalyController
from torchrelay.controller.coverage.arming import ArmingController
from torchrelay.controller.coverage.incidents import Incidents
from torchrelay.controller.coverage.judge import ProtectionJudge
from torchrelay.controller.decide.detection.silence import fenced_after_s
from torchrelay.controller.execution.divergence import Divergence
from torchrelay.controller.execution.driver import Driver
from torchrelay.controller.execution.requests import Requests
from torchrelay.controller.execution.spreading import Spreading
from torchrelay.controller.health.health_controller import HealthController
from torchrelay.controller.job import Job, Worker
from torchrelay.controller.machines.leading import Leading, no_claim
from torchrelay.controller.machines.nodes import Nodes
from torchrelay.controller.migration import events as m
from torchrelay.controller.outbox import Outbox
from torchrelay.controller.pace import Pace
from torchrelay.controller.processes.admission import Entrance
from torchrelay.controller.processes.exits import Exits
from torchrelay.controller.processes.hang_watch import HangWatch
from torchrelay.controller.processes.leftovers import Leftovers
from torchrelay.controller.processes.programs import Programs
from torchrelay.controller.processes.rank_reports import Handler, RankReports
from torchrelay.controller.progress import ProgressTeller
from torchrelay.controller.restart.begin_anew import BeginningAnew
from torchrelay.controller.restart.fallen import Fallen
from torchrelay.controller.restart.job_restart import Gathering, RestartPlan
from torchrelay.controller.restart.machine_wait import Mustering
from torchrelay.controller.spares.pool import SparePool
from torchrelay.controller.spares.rehearsal_controller import RehearsalController
from torchrelay.controller.status import JobSummary, aside_status, aside_summary, job_status, job_summary
from torchrelay.protocol import messages as msg
from torchrelay.protocol.events import JobFell, JobFinished, JobStarted, NodeLost, SparesAsked
from torchrelay.protocol.health.policy import HealthPolicy
from torchrelay.protocol.messages import CheckpointsFound
from torchrelay.protocol.names import EXIT_NO_SPARE_LEFT, EXIT_SUSPECT_NUMBER, EXIT_USAGE, NO_RANK

CALM_TICK_S = 1.0
"""While all goes well, nothing but agents that stay away is noticed by the clock alone."""
SMALL_JOB, SETTLE_S_PER_PROCESS = 64, 50e-6
"""Processes beyond SMALL_JOB: so much later a job is settled after the last time."""
ALERT_TICK_S = 0.05
"""While a verdict or a deadline may be due."""


class Core:
    """Calls take the time `now_s` of one monotonic clock; `wall_s` is the time of day. `take` what is to be sent."""

    def __init__(
        self,
        config: ControllerConfig,
        wall_s: Callable[[], float],
        checkpoint: JobCheckpoint | None = None,
        health: HealthPolicy | None = None,
        restart: RestartPlan | None = None,
        claim: Callable[[int, int], bool] = no_claim,
    ) -> None:
        self._config, self._checkpoint = config, checkpoint
        self.job = Job(config.world_size, config.losses_barred)
        self.job.local_world_size = config.nproc_per_node if config.adopted else 1
        self.outbox = Outbox(self.job, wall_s)
        self.driver = Driver(config, self.job, self.outbox, self._give_up, checkpoint)
        self._requests = Requests(self.job, self.outbox, self.driver)
        self.health = HealthController(
            health or HealthPolicy(),
            self.job,
            self.outbox,
            self.driver,
            self._requests,
            self.end_job,
            config.replica_action,
        )
        self._exits = Exits(config, self.job, self.outbox, self.driver, self.health, self._ended_by_rank, self._give_up)
        self._watch = HangWatch(config.policy, self.job, self.outbox, self.driver, self.health, self._give_up)
        barred = "" if config.refill and not config.adopted else "new ones are not made (--no-refill)"
        self.pool = SparePool(
            barred, self.job, self.outbox, self.driver, self._is_ending, self.driver.spares.respawns.machines
        )
        self.driver.spares.hurry = self.pool.hurry
        self.driver.spares.respawns.asked_for_spares = lambda: self.pool.places_asked
        self._judge = ProtectionJudge(
            config,
            self.job,
            self.outbox,
            self.driver.spares.respawns,
            self.pool,
            lambda: self._rehearsals.is_under_way,
            self._end_check,
        )
        self.driver.over = Incidents(config, self.job, self.outbox, self._judge.promised).migration_over
        self._protection = ArmingController(config, self.job, self.outbox, self.driver, self._judge.news)
        self.leading = Leading(config, self.job, self.outbox, claim)
        fenced_s = fenced_after_s(config.lease_s, config.adopted)
        self.nodes = Nodes(
            config.policy,
            self.job,
            self.outbox,
            self._exits,
            self.driver.node_lost,
            self.end_job,
            self.leading.may_give_up,
            fenced_s,
        )
        self.pace = Pace(self.job, self.outbox, self.nodes)
        self.entrance = Entrance(self.job, self.outbox, config.adopted, fenced_s)
        self.entrance.remember(dict(enumerate(config.holders)))
        self.gathering = Gathering(restart, self.job, self.outbox, self._resume, self._of_no_use) if restart else None
        self.entrance.gathers = self.entrance.began_again = restart is not None
        self.fallen: Fallen | None = None
        """Why the job cannot go on in these processes; whoever made this core says what becomes of it."""
        self.found: CheckpointsFound | None = None
        """What an agent has found on disk since then."""
        self._numbers = AnomalyController(self.job, self.outbox, self.driver, self.end_job)
        self._buddies = Buddies(config.buddy_every, self.job, self.outbox)
        self._rehearsals = RehearsalController(
            config, self.job, self.outbox, self.driver, self._judge.is_compared, self._judge.news, self.pool.doubt
        )
        self._spreading = Spreading(
            config,
            self.job,
            self.outbox,
            self.driver,
            self._requests,
            self._judge,
            self.pool,
            lambda: self._rehearsals.is_under_way,
            self._is_ending,
        )
        self._leftovers = Leftovers(self.job, self.outbox)
        self._programs = Programs(self.outbox)
        self._mustering = Mustering(
            config,
            self.job,
            self.outbox,
            self.driver.spares.respawns,
            self._programs.resume_commands,
            self.end_job,
            fenced_after_s(config.lease_s),
        )
        self._beginning = BeginningAnew(
            config, self.job, self.outbox, self.driver.spares.respawns, self._mustering, self.end_job
        )
        self._refused: set[str] = set()
        """Nodes that came to a job that trains, and were not told the same."""
        self.driver.saving.resume_commands = self._programs.resume_commands
        self.aside: Aside | None = None
        """Set once something of ours has failed in this job: it trains on, and nothing is decided for it."""
        self._settled_s, self._unsettled = -math.inf, False
        self._looked_s, self._uneasy, self._stands = -math.inf, False, False
        self._came_further = False
        """Ranks have, since the last look at who is slow."""
        self._started = False
        self._released = False
        self._progress = ProgressTeller(self.job, self.outbox)
        self.ended: JobFinished | None = None
        self._now_s = 0.0
        self._handlers: dict[type, Handler] = {
            msg.ScriptFailed: self._exits.script_failed,
            msg.Unfit: self._exits.unfit,
            msg.CommunicationFailed: self._exits.communication_failed,
            msg.Explained: self._watch.explained,
            msg.NumberAlarm: self._numbers.alarm,
            msg.CopyReady: self._buddies.ready,
            msg.CopyTaken: self._buddies.taken,
            msg.FilesKept: self._files_kept,
            msg.AsideSet: self._aside_set,
            msg.JournalsCopied: self.nodes.copied,
            msg.JournalCopyLost: self.nodes.copy_lost,
            msg.Rehearsed: self._rehearsals.result,
            msg.Pong: self.pool.answered,
        }
        self._divergence = Divergence(self.job, self.outbox, self.driver)
        self.driver.committed = self._divergence.committed
        said = RankReports(
            self.job, self.outbox, self.driver, self._judge, self.health, self._requests, self._divergence
        )
        self._handlers.update(said.handlers())

    def take(self) -> tuple[list[tuple[str, msg.ToAgent]], list[msg.JobEvent]]:
        """Orders by node, and events, since the last call."""
        return self.outbox.take()

    def take_hang_ups(self) -> list[str]:
        """Nodes that were given up since the last call: their streams are to be closed."""
        taken, self.nodes.to_hang_up = self.nodes.to_hang_up, []
        return taken

    def set_aside(self, reason: str, now_s: float) -> None:
        """What is known of this job may be wrong, since something of ours has failed: nothing is decided for it any more."""
        if self.aside is None and self.ended is None:
            self.aside = Aside(self.job, self.outbox, self._end_aside, reason)
            self.fallen = None
            migration = self.driver.migration
            self.aside.begin(migration.state if migration is not None else None, now_s)

    def _end_aside(self, exit_code: int, reason: str, by: str = "") -> None:
        if self.ended is None:
            self.ended = JobFinished(exit_code, reason, by)
            self.outbox.to_all_agents(_stop(self.ended, signal.SIGTERM))
            self.outbox.emit(self.ended)

    def attach(self, hello: msg.AgentHello, now_s: float) -> None:
        if self.aside is not None and self.ended is None:
            self.aside.attach(hello, now_s)
            return
        if self.nodes.is_lost(hello.node):
            self.nodes.is_back(hello.node)
            return
        compared = self.ended is None and not self._config.adopted
        differs = self._programs.attached(hello.node, hello.program) if compared else ""
        if differs and self._started:
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
            self.end_job(EXIT_USAGE, differs)
        if self.ended is not None:
            self.outbox.orders.append((hello.node, _stop(self.ended, signal.SIGTERM)))
        elif self.gathering is not None and not self.gathering.is_over:
            self.gathering.attached(hello.node)
        else:
            self._consider_start(now_s)

    def _refuse(self, node: str, reason: str) -> None:
        """It alone ends: the job trains, and does so without it."""
        self._programs.forget(node)
        self._refused.add(node)
        self.outbox.orders.append((node, msg.StopJob(EXIT_USAGE, int(signal.SIGTERM), reason)))
        self.outbox.log_once("warning", f"{node} takes no part in this job: {reason}")

    def _consider_start(self, now_s: float) -> None:
        complete = len(self.job.holders) == self.job.world_size or self.driver.checkpoint is not None
        there = self._config.takes_over or len(self.job.nodes) >= self._config.nnodes  # some may be gone since it began
        there = (there or self._mustering.goes_without) and self._beginning.is_over
        if not self._started and complete and there:
            self._started = True
            if self._config.takes_over:
                return  # who watches has been told by the one before
            nodes = tuple(sorted(self.job.nodes))
            spares = max(len(self.job.workers) - self._config.world_size, 0)
            holders = tuple(self.job.holders.get(rank, "") for rank in range(self._config.world_size))
            self.outbox.emit(JobStarted(self._config.run_id, self._config.world_size, spares, nodes, holders))
            if self._checkpoint is not None:
                self.driver.resume(self._checkpoint, self._config.resume_dir, now_s)

    def detach(self, node: str, now_s: float) -> None:
        """The agent's stream has ended; it may come back."""
        if node in self.job.nodes and self.ended is None and not self.job.nodes[node].lost:
            self.job.nodes[node].away_since_s = now_s
            if self.aside is not None:
                return
            if self.gathering is not None:
                self.gathering.detached(node)
            self.outbox.log("warning", f"the agent of {node} is away")

    def receive(self, node: str, message: msg.FromAgent, now_s: float) -> bool:
        """Takes a report of the agent of `node`; whether anything may follow from it. What comes after the job's end is of no
        interest."""
        self._now_s = now_s
        if self.ended is not None or self.nodes.is_lost(node) or node in self._refused:
            return False
        if self.aside is not None:
            self.aside.receive(node, message, now_s)
            return True
        self.nodes.heard(node, now_s)
        if isinstance(message, msg.Progress):
            return self._progressed(node, message, now_s)
        self._received(node, message, now_s)
        return True

    def _progressed(self, node: str, message: msg.Progress, now_s: float) -> bool:
        """Thousands of these come a second where all is well: that ranks have come further is looked at with the clock."""
        if self.fallen is not None:
            return False
        is_news = False
        for progress in message.workers:
            if (worker := self._worker(node, progress.worker)) is not None:
                is_news = worker.take_progress(progress, now_s) or is_news
        self._came_further = True
        if not is_news and self.driver.migration is None:
            return False
        self._settle_soon(now_s)
        return True

    def _received(self, node: str, message: msg.FromAgent, now_s: float) -> None:  # noqa: C901 - one case for each message
        assert not isinstance(message, msg.Progress)
        if isinstance(message, msg.CheckpointsFound):
            self.found = message
        if self.fallen is not None:
            return
        if isinstance(message, (msg.LateWorker, msg.RehearserStarted)) and self._is_another_nodes(node, message.worker):
            self.outbox.log_once(
                "warning", f"{node} says that it has started {message.worker}, a process of another node"
            )
            return
        if isinstance(message, msg.AgentHello):
            self.attach(message, now_s)
        elif isinstance(message, msg.HealthSignals):
            if not self._exits.is_failing:
                self.health.signals(node, message, now_s)
        elif isinstance(message, msg.HealthSources):
            self.health.sources(node, message)
        elif isinstance(message, msg.WorkerStarted):
            self.entrance.take_in(node, message.info, now_s)
            self._consider_start(now_s)
        elif isinstance(message, msg.DeviceChecked):
            self.health.device_checked(message)
        elif isinstance(message, msg.JournalContent):
            self._journal_content(node, message, now_s)
        elif isinstance(message, msg.KeptCopies):
            self.driver.kept_arrived(node, message, now_s)
        elif isinstance(message, msg.CheckpointFile):
            if self.gathering is not None:
                self.gathering.file(node, message)
        elif isinstance(message, msg.CheckpointsFound):
            return
        elif isinstance(message, msg.RoomLeft):
            self.job.nodes[node].room = message
            self._judge.news()
        elif isinstance(message, msg.LateWorker):
            self.driver.started(node, message, now_s)
            self.pool.started(node, message, now_s)
        elif isinstance(message, msg.RehearserStarted):
            self._rehearsals.started(node, message, now_s)
        elif (worker := self._worker(node, message.worker)) is None:
            self.outbox.log_once(
                "warning", f"{node} sent a message of {message.worker}, which is none of its workers: it is left out"
            )
        elif isinstance(message, msg.FromWorker):
            self._handlers[type(message.report)](worker, message.report, now_s)
        elif isinstance(message, msg.WorkerExited) and worker.rehearses:
            self._rehearsals.process_ended(message, now_s)
        elif isinstance(message, msg.WorkerExited) and not self.entrance.keeps(worker, message, now_s):
            self._exits.exited(worker, message, now_s)
            if worker.started_for != NO_RANK and worker.rank == NO_RANK:
                self.driver.late_one_ended(worker, now_s)
        self._settle_soon(now_s)

    def evidence(self, node: str, signals: msg.HealthSignals, now_s: float) -> None:
        """What others than its agent say of a node, such as a cluster: no sign of life of the agent."""
        if not self.is_still and node in self.job.nodes and not self.nodes.is_lost(node) and not self._exits.is_failing:
            self.health.signals(node, signals, now_s)
            self._settle(now_s)

    def tick(self, now_s: float) -> None:
        """To be called every `tick_every_s`."""
        self._now_s = now_s
        if self.is_still:
            return
        if not self.leading.is_led:
            self.leading.tick(now_s)
            return
        if not self._started:
            self._mustering.tick(now_s)
            self._beginning.tick()
            self._consider_start(now_s)
        self.driver.tick(now_s)
        self._exits.tick(now_s)
        if not self.is_over and not self._exits.is_failing:
            self._watch.tick(now_s)
            self._numbers.tick(now_s)
            self._requests.tick(now_s)
        if not self.is_over and self._started and self.job.protection == "on":
            self._spreading.tick(now_s)
        if not self.is_over and self._started:
            self.leading.keep(now_s)
            self.pace.tick(self._stands or self.driver.migration is not None, now_s)
            self.nodes.tick(now_s)
        if not self.is_over and not self._exits.is_failing:
            self.health.tick(now_s)
            if self._came_further:
                self._came_further = False
                self.health.progress(now_s)
        self._settle(now_s)
        if not self.is_over:
            self._lose_missing(now_s)

    def tick_every_s(self, now_s: float) -> float:
        """How much time may pass now until the next tick; any other call may shorten it."""
        if self.is_still:
            return CALM_TICK_S
        pending = self.driver.migration is not None or self._exits.is_waiting or self._requests.is_waiting
        pending = pending or self.health.is_waiting or self._numbers.is_waiting
        pending = pending or not self.leading.is_led
        if not pending and (self._settled_s >= self._looked_s or now_s - self._looked_s >= self._rest_s):
            self._looked_s = now_s  # in a large job each look costs, and there are thousands of words a second
            self._stands = self._watch.is_uneasy(now_s)
            self._uneasy = self._stands or self.nodes.is_uneasy(now_s)
        often_s = ALERT_TICK_S if pending or self._uneasy or self._unsettled else CALM_TICK_S
        return max(often_s, self._rest_s)

    def migrate(self, request: msg.MigrateRequest, now_s: float) -> msg.MigrateReply:
        if self.aside is not None:
            return msg.MigrateReply(False, "", self.aside.reason)
        if self.is_over or self._exits.is_failing:
            return msg.MigrateReply(False, "", "the job is ending")
        return self._requests.migrate(request.rank, request.reason, now_s, request.by)

    def save(self, request: msg.CheckpointRequest, now_s: float) -> msg.MigrateReply:
        """Have all ranks save a checkpoint now, and go on."""
        if refusal := self.aside.reason if self.aside is not None else "":
            return msg.MigrateReply(False, "", refusal)
        if self.is_over or self._exits.is_failing:
            return msg.MigrateReply(False, "", "the job is ending")
        return self._requests.save(request.reason, self._judge.known().checkpoint_lacks, now_s, request.by)

    def want(self, rank: int, reason: str, now_s: float) -> None:
        """A planned move that nobody waits for: it begins when it can."""
        if not self.is_still and not self._exits.is_failing:
            self._requests.want(rank, reason, now_s, lasts=True)

    def lead(self, request: msg.LeadRequest, now_s: float) -> msg.LeadReply:
        """A command of the job's machines asks who leads, and says what it knows."""
        reply = self.leading.answer(request, self._started or self._config.takes_over, self.driver.count, now_s)
        return dataclasses.replace(reply, quorum=reply.quorum and not self.is_over)

    def _lose_missing(self, now_s: float) -> None:
        if self._config.takes_over and self.leading.is_on and self.leading.all_others_are_there:
            self.entrance.others_are_there()
        self.entrance.settle(now_s)
        for worker, exited in self.entrance.take_kept(now_s):
            self._exits.exited(worker, exited, now_s)
        missing = self.entrance.missing(now_s) if self.leading.is_followed(now_s) else []
        if missing:
            self._consider_start(now_s)
            self._settle(now_s)
        for node in sorted({worker.node for worker in missing}):
            self.leading.leave_out(node)
            if self.nodes.is_lost(node):
                ranks = tuple(sorted(worker.rank for worker in missing if worker.node == node))
                self.outbox.emit(NodeLost(node, ranks, 0, self.job.nodes[node].lost))
        for worker in missing:
            reason = f"rank {worker.rank} ({worker.worker}) was lost while no controller was there"
            self._exits.lost_with_node(worker, reason, now_s, now_s)

    def spares_changed(self, now_s: float) -> None:
        """What `Job` knows of spares that others make, or start again, is another than before."""
        if not self.is_still:
            self.driver.feed(m.SpareWarm(), now_s)
            self._settle(now_s)

    def lose(self, node: str, reason: str, now_s: float) -> None:
        """It is known from elsewhere that nothing of `node` lives."""
        if self.aside is not None:
            self.aside.lose(node, reason)
        elif not self.is_over and self._started:
            self.nodes.gone(node, reason, now_s)
            self._settle(now_s)

    def stop(self, signal_number: int, by: str = "") -> None:
        """The user ends the job: at its command, or by asking for it, which `by` says."""
        number = signal_number or signal.SIGTERM
        self.end_job(128 + number, f"stopped by {signal.Signals(number).name}", number, by)

    def status(self, now_s: float) -> msg.JobStatus:
        if self.aside is not None:
            return aside_status(self._config.run_id, self.job, self.aside.reason)
        lines = self.health.lines()
        status = job_status(self._config.run_id, self.job, self.driver, self.pool, self._judge.now(), now_s, lines)
        machines = self._spreading.reason if self._started else self._mustering.waits
        return dataclasses.replace(status, ranks_spread=self._spreading.moves, spread_reason=machines)

    def summary(self, now_s: float) -> JobSummary:
        """As `status`, of bounded size."""
        if self.aside is not None:
            return aside_summary(self.job, self.aside.reason)
        lately = self._judge.lately(now_s)
        return job_summary(self.job, self.driver, lately.level, lately.reason)

    def coverage(self, now_s: float) -> msg.Coverage | None:
        """How far the job is protected; its times may be some seconds old. None once something of ours has failed in it."""
        return self._judge.lately(now_s) if self.aside is None else None

    def clear(self, request: msg.ClearRequest) -> msg.ClearReply:
        return self.health.clear(request)

    def put_aside(self, request: msg.QuarantineRequest, now_s: float) -> msg.QuarantineReply:
        """Quarantine a device or a node by somebody's choice: its ranks move."""
        if self.aside is not None:
            return msg.QuarantineReply(False, self.aside.reason)
        if self.is_over or self._exits.is_failing:
            return msg.QuarantineReply(False, "the job is ending")
        reply = self.health.put_aside(request, now_s)
        self._settle(now_s)
        return reply

    def add_spares(self, request: msg.AddSparesRequest, now_s: float) -> msg.AddSparesReply:
        """Have more spares, by somebody's choice."""
        if self.aside is not None:
            return msg.AddSparesReply(False, self.aside.reason)
        if ending := "the job is ending" if self.is_over else self._is_ending():
            return msg.AddSparesReply(False, ending, self.pool.wanted)
        reply = self.pool.add(request.count, request.node)
        if reply.accepted:
            self.outbox.emit(SparesAsked(request.count, request.node, reply.wanted, request.by))
        self._settle(now_s)
        return reply

    def end_job(self, exit_code: int, reason: str, signal_number: int = signal.SIGTERM, by: str = "") -> None:
        """Ends the job on all nodes; the first reason is the one that counts."""
        if self.aside is not None:
            self._end_aside(exit_code, reason, by)
        elif self.ended is None:
            self._requests.job_over(reason)
            self._judge.job_over()
            self.ended = JobFinished(exit_code, reason, by)
            self.outbox.to_all_agents(_stop(self.ended, signal_number))
            self._progress.tell_last()
            self.outbox.emit(self.ended)

    @property
    def is_over(self) -> bool:
        """Whether nothing of this job goes on in these processes."""
        return self.ended is not None or self.fallen is not None

    @property
    def is_still(self) -> bool:
        """Whether nothing is decided any more."""
        return self.is_over or self.aside is not None

    def hand_over(self, reason: str) -> None:
        """The job begins again elsewhere: processes end here, and agents stay."""
        self.outbox.to_all_agents(msg.RestartWorkers(reason))
        self.ended = JobFinished(EXIT_NO_SPARE_LEFT, reason)

    def _ended_by_rank(self, exit_code: int, reason: str, rank: int, by_script: bool) -> None:
        if not self.is_over:
            self._tell_fall(
                Fallen(exit_code, reason, rank, refused="the script has failed" if by_script else reason), by_script
            )
        self.end_job(exit_code, reason)

    def _tell_fall(self, fallen: Fallen, by_script: bool = False) -> None:
        furthest = max((w.seen_boundary for w in self.job.workers.values()), default=-1)
        f, at = fallen, fallen.step if fallen.directory else -1
        self.outbox.emit(
            JobFell(
                f.rank,
                f.exit_code,
                f.reason,
                max(furthest, at),
                by_script,
                f.directory,
                at,
                f.refused,
                f.losses_at_step,
            )
        )

    def _give_up(self, fallen: Fallen) -> None:
        if not self._config.restarts:
            if not self.is_over and fallen.exit_code != EXIT_SUSPECT_NUMBER:
                self._tell_fall(fallen)
            # What stands and is saved must not run on from there: no handler of the script, nor what follows it.
            self.end_job(fallen.exit_code, fallen.reason, signal.SIGKILL if fallen.directory else signal.SIGTERM)
        elif not self.is_over:
            self.fallen = fallen
            self._requests.job_over(fallen.reason)
            self.outbox.log("warning", fallen.reason)

    def _resume(self, checkpoint: JobCheckpoint, directory: str) -> None:
        self.entrance.resumes = True
        self.driver.checkpoint = checkpoint
        self._consider_start(self._now_s)
        self.driver.resume(checkpoint, directory, self._now_s)

    def _of_no_use(self, reason: str) -> None:
        self._give_up(Fallen(1, f"the job cannot begin again: {reason}", NO_RANK, refused=reason))

    def _files_kept(self, worker: Worker, report: msg.FilesKept, now_s: float) -> None:
        self.driver.files_kept(worker.worker, now_s)

    def _aside_set(self, worker: Worker, report: msg.AsideSet, now_s: float) -> None:
        if self.gathering is not None:
            self.gathering.aside_set(worker.worker, report)

    def _is_another_nodes(self, node: str, worker: str) -> bool:
        known = self.job.workers.get(worker)
        return known is not None and known.node != node

    def _worker(self, node: str, worker: str) -> Worker | None:
        known = self.job.workers.get(worker)
        return known if known is not None and known.node == node else None

    def _settle_soon(self, now_s: float) -> None:
        """At once in a small job. In a large one all its ranks' words would each cost a look at all of its ranks."""
        self._unsettled = True
        if self._is_due(now_s):
            self._settle(now_s)

    def _is_due(self, now_s: float) -> bool:
        return now_s - self._settled_s >= self._rest_s

    @property
    def _rest_s(self) -> float:
        """Between two looks at all of a large job: each costs in proportion to its size."""
        return max(0, len(self.job.workers) - SMALL_JOB) * SETTLE_S_PER_PROCESS

    def _settle(self, now_s: float) -> None:
        """What follows from the state as a whole, whatever has changed it."""
        self._settled_s, self._unsettled = now_s, False
        if self.gathering is not None and not self.gathering.is_over and not self.is_over:
            self.gathering.settle()
            if not self.gathering.is_over:
                return
            self.entrance.gathers = False
            self._consider_start(now_s)
        if self.is_over or not self._started:
            return
        self._divergence.settle(now_s)
        self._protection.settle()
        self._rehearsals.settle(self._now_s)
        self.pool.settle(self._now_s)
        ending = any(w.finishing for w in self.job.rank_workers)
        if self._judge.settle(ending or self.driver.migration is not None) and self._config.buddy_every:
            self._buddies.settle(self._judge.known())
        if self.is_over:
            return
        if self.driver.migration is None and self.job.protection == "on":
            self._leftovers.settle()
        ranks = self.job.rank_workers
        if len(ranks) == self.job.world_size:
            self.job.clock.reached(self.job.boundary, now_s)
            self._progress.tell(now_s)
            busy = self.driver.migration is not None or self._rehearsals.is_under_way
            if not busy and all(w.finishing for w in ranks):
                self._release(ranks)
                if not any(w.alive for w in ranks):
                    self.end_job(0, "all ranks are done")

    def _is_ending(self) -> str:
        if self._exits.is_failing or any(w.finishing or not w.alive for w in self.job.rank_workers):
            return "ranks are at their end"
        return ""

    def _release(self, ranks: list[Worker]) -> None:
        if not self._released:
            self._released = True
            self.driver.clear_checkpoints(keep=0)
            for worker in ranks:
                if worker.alive:
                    self.outbox.to_worker(worker.worker, msg.MayFinish())

    def _end_check(self) -> None:
        """Without a chance for the script to end as after a whole run."""
        self.end_job(0, "the check is over", signal.SIGKILL)

    def _journal_content(self, node: str, content: msg.JournalContent, now_s: float) -> None:
        worker = self.job.workers.get(content.worker)
        if worker is None or self.job.node_with_journal(worker.worker) != node:
            self.outbox.log_once("warning", f"{node} sent a journal of {content.worker}, which it was not asked for")
            return
        if self._rehearsals.takes(content, self._now_s) and not self.driver.reads(worker.worker):
            return
        if worker.rank != NO_RANK:
            self.job.journal(worker.rank).add(content)
            worker.seen_boundary = max(worker.seen_boundary, *content.boundaries, -1)
        self.driver.journal_arrived(worker.worker, now_s)


def _stop(ended: JobFinished, signal_number: int) -> msg.StopJob:
    return msg.StopJob(ended.exit_code, int(signal_number), ended.reason)
