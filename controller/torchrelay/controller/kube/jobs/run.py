"""One job in a cluster, from its first process to its end: the same core as `torchrelay run` has, and what is told of it."""

from __future__ import annotations

import asyncio
import dataclasses
import logging
import secrets
import time
from collections.abc import Callable, Iterable, Mapping, Sequence

from torchrelay.controller.config import ControllerConfig, Policy
from torchrelay.controller.containment.time_share import TimeShare
from torchrelay.controller.core import Core
from torchrelay.controller.kube.cluster.pods import JobKey, Pod
from torchrelay.controller.kube.decide.ladder import MAX_RESTARTS_AT_STEP
from torchrelay.controller.kube.decide.late import Ended, is_late
from torchrelay.controller.kube.decide.removal import Deleted, judge_removal
from torchrelay.controller.kube.status.losses import Loss, Losses
from torchrelay.controller.kube.status.status_builder import StatusBuilder
from torchrelay.controller.kube.status.time_used import NOT_WATCHED, TimeUsed
from torchrelay.controller.metrics.tally import JobTally, Totals
from torchrelay.controller.picture.worker import Worker
from torchrelay.controller.restart.job_restart import RestartPlan
from torchrelay.controller.serving.event_log import PROGRESS
from torchrelay.controller.serving.relay import Relay
from torchrelay.controller.serving.service import RelayService
from torchrelay.protocol.errors import RefusedError
from torchrelay.protocol.events import (
    JobRestarted,
    ProgressMade,
    RestartDone,
    SparesAsked,
    SparesChanged,
    from_job_event,
)
from torchrelay.protocol.health.policy import HealthPolicy
from torchrelay.protocol.health.policy_file import default_policy
from torchrelay.protocol.kube import kube_names as kube
from torchrelay.protocol.kube.annotations import PodAnnotations
from torchrelay.protocol.kube.checkpoint_owner import folder_prefix, job_id
from torchrelay.protocol.kube.local_ranks import local_world_size
from torchrelay.protocol.kube.object_names import beginning
from torchrelay.protocol.logs.log_records import of_run
from torchrelay.protocol.messages import CheckpointRequest, JobEvent, MigrateReply, MigrateRequest
from torchrelay.protocol.names import DEFAULT_MASTER_PORT, NO_RANK
from torchrelay.protocol.notify.notices import ToldOfJob
from torchrelay.protocol.words.phases import Deadlines

log = logging.getLogger(__name__)

NO_FOLDER = "no checkpoint can be saved: the job names no folder for it (annotation checkpoint-dir)"
EXIT_REMOVED = 143
"""128 + SIGTERM: the exit code of a process whose pod is deleted."""
MOST_CHARS = 1000
_UNTOLD = ("progress", "migration_progress", "rank_report", "coverage", "devices_used")
"""Events that are long or many: they stand in the TrainingJob, or are for the dashboard alone."""


class JobRun:
    """One run. `launch`: what the launcher told one of its processes. `restarts`: at which steps the job has begun again so far.

    `losses`, `used`: those of before, and the job's time until now. `lineage`: of the job, where it has begun before.
    With `restart` the job begins again once more, in new processes.
    """

    def __init__(
        self,
        key: JobKey,
        world_size: int,
        launch: Mapping[str, str],
        options: PodAnnotations,
        health: HealthPolicy | None = None,
        restarts: Sequence[int] = (),
        restart: RestartPlan | None = None,
        losses: Sequence[Loss] = (),
        used: TimeUsed = NOT_WATCHED,
        lineage: str = "",
    ) -> None:
        self.key = key
        self.id = secrets.token_hex(3)
        self.lineage = lineage or self.id
        """The same for all runs of one job, which may begin again."""
        self.told_as = self.id
        """The same for all runs of one job under one controller. A listener begins anew under the next controller."""
        self.trained_before = restart is not None
        """Whether the job has trained before, under this controller or another one."""
        self.holds_off = False
        """Whether evictions of its pods are held off, so that this has to be taken back."""
        self.follows = False
        """Whether an earlier job of its name has ended under this controller."""
        self.launch = dict(launch)
        self.options = options
        self.restarts = tuple(restarts)
        self.restart = restart
        self.there: Callable[[], Iterable[Pod]] = tuple
        """Returns the job's pods, as far as they are known."""
        self.end: Ended | None = None
        self.began_s = time.monotonic()
        self.trouble = ""
        """Why spares that are wanted do not come."""
        self.asked_s: float | None = None
        """When an agent was asked for checkpoints on disk."""
        self.wake: Callable[[], None] = _nobody
        """Called when the job is to be looked at soon."""
        self._observes = options.policy == kube.POLICY_OBSERVE
        self.core = Core(_config(self, world_size), time.time, None, self._policy(health), restart)
        self.core.entrance.may_live = lambda agent: any(p.agent == agent and not p.is_over for p in self.there())
        self.core.job.spares_wanted = (options.spares or 0) if not options.pool else 1
        self.losses = Losses(losses)
        self._recall(losses)
        self.story = StatusBuilder(
            key.name, f"{beginning(key.name, 40)}-{self.id}", lambda: self.core.job.holders, self._lost_at, self.losses
        )
        self.story.begins_at = restart.step if restart is not None else None
        self.tally = JobTally(Totals())
        self.told_of = ToldOfJob()
        """Decides which of its events are worth a notice."""
        self.listens: Callable[[JobEvent], None] = _nobody_listens
        self._used_before = used
        self.failure = ""
        """How torchrelay has failed in this job, which is unprotected since; empty: it has not."""
        self.relay = Relay(self.core, self._hear, self.failed, TimeShare())
        self.service = RelayService(self.relay)
        self._deleted: dict[int, tuple[str, Deleted]] = {}
        self._restarted_s: float | None = None
        """Since when it begins again, until all ranks train."""
        self._spares: SparesChanged | None = None
        self._wanted: int | None = None
        self.task = asyncio.create_task(self.relay.run())

    def _policy(self, health: HealthPolicy | None) -> HealthPolicy | None:
        """Return the policy for this job: a job that is only observed is told what would be done."""
        if not self._observes:
            return health
        return dataclasses.replace(health if health is not None else default_policy(), observe=True)

    def take_policy(self, health: HealthPolicy) -> None:
        """Use another policy from now on."""
        self.core.health.take_policy(self._policy(health) or health)

    def failed(self, error: Exception) -> None:
        """Set the job aside: torchrelay has failed in it, or its agents go too far.

        It is unprotected from now on, and others go on.
        """
        if self.failure:
            return
        ours = f"a fault of torchrelay's: {type(error).__name__}: {error}"
        self.failure = (str(error) if isinstance(error, RefusedError) else ours)[:MOST_CHARS]
        of_run(log, self.key).error("%s is not protected any more: %s", self.key, self.failure, exc_info=error)
        try:
            self.relay.set_aside(self.failure)
        except Exception:  # what has failed may be what this leans on
            log.exception("%s: its agents could not be told", self.key, extra={"run": str(self.key)})
            self.relay.resign()

    def contained(self, work: Callable[[], object]) -> None:
        """Do work that is for this job alone. If it fails, this job is unprotected, and others go on."""
        try:
            work()
        except Exception as e:  # noqa: BLE001 - whatever it is, the next job must not notice
            self.failed(e)

    def _hear(self, event: JobEvent) -> None:
        if event.name not in _UNTOLD:
            of_run(log, self.key).info("%s: %s %s", self.key, event.name, event.fields_json)
        self.story.take(event)
        self.tally.hear(event)
        self.listens(event)
        if event.name not in _UNTOLD:
            self.wake()
        if event.name == PROGRESS and self._restarted_s is not None:
            self._tell_restarted(event, self._restarted_s)
        if self.story.finished is not None and self.end is None:
            # This is decided at this moment: whoever asks next may be a process that has only just begun.
            pods = list(self.there())
            owners = frozenset(p.owner for p in pods)
            self.end = Ended(self.story.finished.exit_code, frozenset(p.uid for p in pods), owners)

    @property
    def used(self) -> TimeUsed:
        """What the job's time was used for, under the controllers before this one, too."""
        return self._used_before.plus(self.tally.account)

    def tell_restart(self, rung: str, reason: str, steps: int) -> None:
        """Tell that all processes start anew, as a job on machines does. `steps`: done before, to be done again."""
        assert self.restart is not None
        self._restarted_s = time.time()
        where = self.restart.directory or self.restart.checkpoint
        restarted = JobRestarted(len(self.restarts), rung, where, self.restart.step, steps, reason, ())
        self.core.outbox.emit(restarted)

    def tell_spares(self, now: SparesChanged) -> None:
        """Tell how many pods for spares there are, when the number has changed."""
        if now != self._spares and not self.is_over:
            self._spares = now
            self.core.outbox.emit(now)

    def tell_asked(self, wanted: int, by: str) -> None:
        """Tell how many pods for spares are asked for, when the number has changed. `by`: who asked for the newest number."""
        before = self._wanted
        self._wanted = wanted
        if before is not None and before != wanted and not self.is_over:
            self.core.outbox.emit(SparesAsked(wanted - before, "", wanted, by))

    def _tell_restarted(self, event: JobEvent, since_s: float) -> None:
        progress = from_job_event(event)
        if isinstance(progress, ProgressMade) and self.restart is not None and progress.steps > self.restart.step:
            self._restarted_s = None
            self.core.outbox.emit(RestartDone(len(self.restarts), event.time_s - since_s))

    def _recall(self, losses: Sequence[Loss]) -> None:
        ago_s = time.monotonic() - time.time()
        for loss in losses:
            in_place = loss.rung == kube.RESPAWN
            self.core.driver.spares.respawns.recall(loss.rank, loss.step, loss.at_s + ago_s if in_place else None)

    def _lost_at(self, rank: int) -> tuple[int, str]:
        spares = self.core.driver.spares
        refused = spares.refused.get(rank)
        return spares.respawns.boundary(rank), refused.spare if refused is not None else ""

    def pods_seen(self, not_again: Mapping[str, str], coming: int) -> None:
        """Take note of the pods. `coming`: spares' pods without a process yet.

        `not_again`: for the agent of each pod, why no process is started again there, or empty.
        """
        job = self.core.job
        again = {n for n, why in not_again.items() if not why}
        stay = {n: why for n, why in not_again.items() if why}
        changed = (again, stay, coming) != (job.starting_again, job.not_again, job.spares_coming)
        job.starting_again = again
        job.not_again = stay
        job.spares_coming = coming
        if changed:
            self.relay.spares_changed()

    def is_late(self, pod: Pod) -> bool:
        """Return whether what starts in the pod was meant for this job, which is over."""
        return self.end is not None and is_late(pod.uid, pod.owner, self.end)

    @property
    def job_id(self) -> str:
        """The name that tells its just-in-time checkpoints from those of other jobs."""
        return job_id(self.key.namespace, self.key.name, self.lineage)

    @property
    def is_launched(self) -> bool:
        """Whether a launcher in each pod starts a process again that was killed."""
        return "TORCHELASTIC_RUN_ID" in self.launch

    @property
    def processes(self) -> int:
        """The number of processes of each pod."""
        return self.core.job.local_world_size

    @property
    def is_busy(self) -> bool:
        """Whether there is something to decide, or to tell."""
        busy = self.core.fallen is not None or self.gathers or self.core.driver.migration is not None
        told = not self.story.kube_events and not any(m.changed for m in self.story.migrations)
        return busy or not told or not self.settled

    @property
    def is_over(self) -> bool:
        return self.core.ended is not None or self.core.fallen is not None

    @property
    def runs(self) -> bool:
        """Whether some rank lives, or is to begin again."""
        if self.is_over:
            return False
        return (
            self.gathers
            or self.core.entrance.is_taking_over
            or self.core.driver.migration is not None
            or any(w.alive for w in self.core.job.rank_workers)
        )

    @property
    def settled(self) -> bool:
        """Whether it is known which process has which rank, also where an earlier controller has begun the job."""
        return self.core.job.protection != "pending"

    @property
    def gathers(self) -> bool:
        """Whether the job waits for processes to begin again in."""
        return not self.is_over and self.core.gathering is not None and not self.core.gathering.is_over

    def took_over(self, agent: str) -> bool:
        """Return whether a process of the pod holds a rank, or is about to."""
        job = self.core.job
        return any(
            job.is_holder(w) or (w.alive and (w.rank != NO_RANK or w.started_for != NO_RANK))
            for w in job.workers.on(agent)
        )

    def is_warm(self, agent: str) -> bool:
        """Return whether all processes of the pod are warm spares."""
        return sum(w.is_spare and w.warm for w in self.core.job.workers.on(agent)) >= self.processes

    def is_attached(self, agent: str) -> bool:
        """Return whether the agent of the pod has come."""
        return agent in self.core.job.nodes

    def is_here(self, agent: str) -> bool:
        """Return whether a process of the pod is known."""
        return bool(self.core.job.workers.on(agent))

    def living_in(self, agent: str) -> list[Worker]:
        """Return all living processes of the pod, spares too."""
        return [w for w in self.core.job.workers.on(agent) if w.alive]

    def ranks_in(self, agent: str) -> list[int]:
        job = self.core.job
        return sorted(w.rank for w in job.workers.on(agent) if w.alive and job.is_holder(w))

    def stays_in(self, agent: str) -> list[int]:
        """Return the ranks that live in the pod, or are on their way there."""
        migration = self.core.driver.migration
        joiners = migration.state.joiners.items() if migration is not None else ()
        coming = [rank for rank, j in joiners if self.core.job.workers[j.worker].node == agent]
        return sorted({*self.ranks_in(agent), *coming})

    def pod_deleted(self, agent: str, node_is_left: bool, now_s: float) -> None:
        """Take note that a pod is being deleted, or is gone from the API. If all pods of ranks are, end the job."""
        job = self.core.job
        for worker in job.workers.on(agent):
            if job.is_holder(worker):
                known = self._deleted.get(worker.rank)
                if known is None or known[0] != agent:
                    self._deleted[worker.rank] = agent, Deleted(now_s, node_is_left)
        if len(self._deleted) < job.world_size:
            return
        deleted = {rank: when for rank, (_, when) in self._deleted.items()}
        verdict = judge_removal(job.world_size, deleted, now_s)
        if verdict.removed and self.core.ended is None:
            self.relay.end(EXIT_REMOVED, verdict.reason)

    def migrate(self, rank: int, reason: str, by: str) -> MigrateReply:
        return self.relay.migrate(MigrateRequest(rank, reason, by))

    def save(self, reason: str, by: str) -> MigrateReply:
        return self.relay.save(CheckpointRequest(reason, by))


def _nobody() -> None:
    """Do nothing: the job is not looked after yet."""


def _nobody_listens(event: JobEvent) -> None:
    pass


def _config(run: JobRun, world_size: int) -> ControllerConfig:
    options = run.options
    launch = run.launch
    port = launch.get("MASTER_PORT", "")
    processes = local_world_size(launch)
    if world_size % processes:
        processes = 1  # such a job is not protected, and its processes are told why
    acts = options.policy == kube.POLICY_AUTO
    barred = "{} is not among what the job allows (annotation fallback)"
    jit_barred = "" if kube.JIT_CHECKPOINT in options.fallback else barred.format(kube.JIT_CHECKPOINT)
    worn_out = {step for step in run.restarts if run.restarts.count(step) >= MAX_RESTARTS_AT_STEP}
    return ControllerConfig(
        run_id=f"{run.key.name}-{run.id}",
        nnodes=world_size // processes,
        nproc_per_node=processes,
        secret_file="",
        address_file="",
        jit_dir=options.checkpoint_dir,
        job_id=run.job_id,
        master_addr=launch.get("MASTER_ADDR", ""),
        master_port=int(port) if port.isdigit() else DEFAULT_MASTER_PORT,
        adopted=True,
        observe=options.policy == kube.POLICY_OBSERVE,
        planned_only=options.policy == kube.POLICY_PLANNED_ONLY,
        restarts=acts,
        spares_barred="" if kube.NEXT_SPARE in options.fallback else barred.format(kube.NEXT_SPARE),
        respawn_barred="" if kube.RESPAWN in options.fallback else barred.format(kube.RESPAWN),
        respawn_limit=options.respawn_limit,
        respawn_option="annotation respawn-limit",
        jit_barred=jit_barred if options.checkpoint_dir else NO_FOLDER,
        jit_prefix=folder_prefix(run.job_id),
        worn_out=tuple(sorted(worn_out)),
        deadlines=Deadlines(spare_s=options.spare_wait_s),
        policy=Policy(hang_timeout_s=options.hang_timeout_s, hang_timeout_option="annotation hang-timeout"),
        buddy_every=options.copies_every,
        buddy_sync=options.buddy_sync,
        rehearse_every_s=options.rehearse_every_s,
    )
