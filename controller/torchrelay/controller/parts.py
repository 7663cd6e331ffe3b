"""What the controller of one job is made of: makes the parts, and tells each of those that it works with."""

from __future__ import annotations

from collections.abc import Callable

from torchrelay.controller.checkpoints.checkpoint import JobCheckpoint
from torchrelay.controller.checkpoints.peer_copies import Buddies
from torchrelay.controller.config import ControllerConfig
from torchrelay.controller.coverage.anomalies import AnomalyController
from torchrelay.controller.coverage.arming import ArmingController
from torchrelay.controller.coverage.incidents import Incidents
from torchrelay.controller.coverage.judge import ProtectionJudge
from torchrelay.controller.coverage.spreading import Spreading
from torchrelay.controller.decide.detection.silence import fenced_after_s
from torchrelay.controller.ending import Ending
from torchrelay.controller.execution.divergence import Divergence
from torchrelay.controller.execution.driver import Driver
from torchrelay.controller.execution.planned_moves import PlannedMoves
from torchrelay.controller.health.health_controller import HealthController
from torchrelay.controller.machines.leading import Leading
from torchrelay.controller.machines.nodes import Nodes
from torchrelay.controller.outbox import Outbox
from torchrelay.controller.pace import Pace
from torchrelay.controller.picture.job import Job
from torchrelay.controller.processes.admission import Entrance
from torchrelay.controller.processes.exits import Exits
from torchrelay.controller.processes.hang_watch import HangWatch
from torchrelay.controller.processes.leftovers import Leftovers
from torchrelay.controller.processes.programs import Programs
from torchrelay.controller.progress import ProgressTeller
from torchrelay.controller.restart.job_restart import Gathering, RestartPlan
from torchrelay.controller.spares.pool import SparePool
from torchrelay.controller.spares.rehearsal_controller import RehearsalController
from torchrelay.controller.start import JobStart
from torchrelay.protocol.health.policy import HealthPolicy
from torchrelay.protocol.options.members import member_of


class Parts:
    """`checkpoint`: what the job resumes from; `restart`: how it begins again; `claim`: as for `Leading`."""

    def __init__(
        self,
        config: ControllerConfig,
        wall_s: Callable[[], float],
        checkpoint: JobCheckpoint | None,
        health: HealthPolicy | None,
        restart: RestartPlan | None,
        claim: Callable[[int, int], bool],
    ) -> None:
        self.config = config
        self.job = Job(config.world_size, config.losses_barred)
        self.job.ranks_per_node = config.nproc_per_node
        self.job.imports_differ = config.imports_differ
        self.job.local_world_size = config.nproc_per_node if config.adopted else 1
        self.outbox = Outbox(self.job, wall_s)
        self.progress = ProgressTeller(self.job, self.outbox)
        self.ending = Ending(self.job, self.outbox, self.progress, config.restarts)
        self._make_replacing(checkpoint, health or HealthPolicy())
        self._make_protecting()
        self._make_admitting(checkpoint, restart, claim)

    def _make_replacing(self, checkpoint: JobCheckpoint | None, health: HealthPolicy) -> None:
        """Who notices that a rank is lost, or is to move, and what becomes of it."""
        config = self.config
        job = self.job
        outbox = self.outbox
        ending = self.ending
        driver = self.driver = Driver(config, job, outbox, ending.give_up, checkpoint)
        self.planned_moves = PlannedMoves(job, outbox, driver)
        ending.refuse_moves = self.planned_moves.job_over
        self.health = HealthController(
            health, job, outbox, driver, self.planned_moves, ending.end_job, config.replica_action
        )
        self.exits = Exits(config, job, outbox, driver, self.health, ending.end_by_rank, ending.give_up)
        self.hang_watch = HangWatch(config.policy, job, outbox, driver, self.health, ending.give_up)
        self.numbers = AnomalyController(job, outbox, driver, ending.end_job)
        self.buddies = Buddies(config.buddy_every, job, outbox)
        self.divergence = Divergence(job, outbox, driver)
        driver.committed = self.divergence.committed
        barred = "" if config.refill and not config.adopted else "new ones are not made (--no-refill)"
        respawns = driver.spares.respawns
        self.pool = SparePool(barred, job, outbox, driver, self.exits.why_ending, respawns.machines)
        driver.spares.hurry = self.pool.hurry
        driver.spares.end_stopped = self.pool.end_stopped
        respawns.asked_for_spares = lambda: self.pool.places_asked

    def _make_protecting(self) -> None:
        """How far the job is protected, and what is done for it while all goes well."""
        config = self.config
        job = self.job
        outbox = self.outbox
        driver = self.driver
        ending = self.ending

        def is_rehearsing() -> bool:
            return self.rehearsals.is_under_way

        judge = self.judge = ProtectionJudge(
            config, job, outbox, driver.spares.respawns, self.pool, is_rehearsing, ending.end_check
        )
        ending.tell_report = judge.job_over
        driver.outcomes.over = Incidents(config, job, outbox, judge.promised).migration_over
        self.arming = ArmingController(config, job, outbox, driver, judge.news)
        self.rehearsals = RehearsalController(
            config, job, outbox, driver, judge.is_compared, judge.news, self.pool.doubt
        )
        self.spreading = Spreading(
            config, job, outbox, driver, self.planned_moves, judge, self.pool, is_rehearsing, self.exits.why_ending
        )
        self.leftovers = Leftovers(job, outbox)

    def _make_admitting(
        self, checkpoint: JobCheckpoint | None, restart: RestartPlan | None, claim: Callable[[int, int], bool]
    ) -> None:
        """Machines and processes that come and go, and when the job begins."""
        config = self.config
        job = self.job
        outbox = self.outbox
        driver = self.driver
        ending = self.ending
        self.leading = Leading(config, job, outbox, claim)
        fenced_s = fenced_after_s(config.lease_s, config.adopted)
        self.nodes = Nodes(
            config.policy,
            job,
            outbox,
            self.exits,
            driver.node_lost,
            ending.end_job,
            self.leading.may_give_up,
            fenced_s,
        )
        self.pace = Pace(job, outbox, self.nodes)
        self.programs = Programs(outbox, job)
        self.programs.recall(map(member_of, (*config.members, *config.members_before)))
        driver.saving.resume_commands = self.programs.resume_commands
        self.entrance = Entrance(job, outbox, config.adopted, fenced_s)
        self.entrance.remember(dict(enumerate(config.holders)))
        self.entrance.gathers = self.entrance.began_again = restart is not None
        self.start = JobStart(config, checkpoint, job, outbox, ending, driver, self.entrance, self.programs)
        self.gathering = (
            Gathering(restart, job, outbox, self.start.resume, ending.cannot_begin_again) if restart else None
        )
