"""What a run has been so far: the facts of its events, in bounded memory. No I/O.

What a page, `history` and `explain` say is made of this by pure functions: `view`, `headline`, `story`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from typing import Any

from torchrelay.dashboard.progress_line import ProgressLine
from torchrelay.dashboard.run_facts import (
    USUAL_BOUNDS,
    Bounds,
    ClusterJob,
    Heard,
    MigrationRecord,
    QuarantinedSubject,
    Restart,
    RunTotals,
    still_not_made,
)
from torchrelay.dashboard.workers import agent_of, ended, spread
from torchrelay.protocol import events
from torchrelay.protocol.kube.job_feed import BarredSubject
from torchrelay.protocol.metrics.account import Account, UsefulTime
from torchrelay.protocol.words.level import Level
from torchrelay.protocol.words.phases import ABANDONED, COMMITTED, SAVE, UNFORCED

VERDICTS_KEPT = 200
SAVED_KEPT = 1000
QUARANTINED_KEPT = 2000
BEFORE_S = 300.0
"""What was heard of a rank for so long before it moved belongs to the story of its move."""
REFUSED = "refused"
OBSERVED = "observed"
_SIGNS = (events.FaultFired, events.Suspected, events.HealthVerdict, events.WorkerEnded, events.NodeLost)
_OF_ITS_MIGRATION = (events.PhaseChanged, events.Decision, events.MoveNotMade, events.IncidentKept)


class RunRecord:
    """Takes the events of one run, in their order. `job`: where it runs in a cluster."""

    def __init__(self, run_id: str = "", job: ClusterJob | None = None, bounds: Bounds = USUAL_BOUNDS) -> None:
        self.run_id = run_id
        self.job = job
        self._bounds = bounds
        self.world_size = 0
        self.nodes: tuple[str, ...] = ()
        self.holders: dict[int, str] = {}
        """Rank -> worker, as far as it is known."""
        self.gpus: dict[str, dict[str, str]] = {}
        """Node -> worker -> the UUID of its GPU, as far as it is known."""
        self.lost: dict[int, str] = {}
        """Rank -> how its process ended, until somebody has taken it over."""
        self.moved: dict[int, str] = {}
        """Rank -> key of its latest migration."""
        self.started_s = 0.0
        self.first_step_s: float | None = None
        self.newest_s = 0.0
        self.ended: Heard | None = None
        self.fell: Heard | None = None
        self.level = Level.PENDING
        self.level_reason = ""
        self.coverage: dict[str, Any] = {}
        self.steps_per_s = 0.0
        self.boundary = -1
        self.ranks_alive = 0
        self.spares_ready = 0
        self.pool: events.SparesChanged | None = None
        self.migrations: dict[str, MigrationRecord] = {}
        self.quarantine: dict[str, QuarantinedSubject] = {}
        self.machines: Mapping[str, str] = {}
        """Agent -> its node, in a cluster: as far as they are known."""
        self.barred: Mapping[str, BarredSubject] = {}
        """Device or node -> the Quarantine of a cluster that names it."""
        self.verdicts: deque[Heard] = deque(maxlen=VERDICTS_KEPT)
        self.not_made: deque[events.MoveNotMade] = deque(maxlen=VERDICTS_KEPT)
        self.incidents: deque[events.IncidentKept] = deque(maxlen=VERDICTS_KEPT)
        self.restarts: list[Restart] = []
        self.checkpoint: events.CheckpointSaved | None = None
        self.saved_s: deque[float] = deque(maxlen=SAVED_KEPT)
        """When each checkpoint was saved."""
        self.totals = RunTotals()
        self.account = Account()
        self.line = ProgressLine()
        self._signs: deque[Heard] = deque(maxlen=bounds.heard)

    @property
    def under_way(self) -> MigrationRecord | None:
        """Return the migration that is going on; None if there is none."""
        newest = next(reversed(self.migrations.values()), None)
        return newest if newest is not None and newest.is_under_way else None

    def useful_time(self, now_s: float) -> UsefulTime:
        """Return what the time was used for until `now_s`, or until the job's end."""
        running = self.under_way
        return self.account.useful_time(now_s, running.stands_since_s if running is not None else None)

    def node_of(self, worker: str) -> str:
        """Return the worker's node; in a cluster its pod's name, if the node is not known."""
        agent = agent_of(worker)
        return agent if self.job is None else self.machines.get(agent) or agent.partition(":")[0]

    def shown(self, subject: str) -> str:
        """Return what people call a device or a node in quarantine. In a cluster, a job's agents have the names of their nodes."""
        return self.machines.get(subject) or subject

    def take(self, what: events.Occurrence, time_s: float) -> None:
        """Take one more event, told at `time_s`."""
        self.newest_s = max(self.newest_s, time_s)
        self.account.take(what, time_s)
        if isinstance(what, events.MigrationFinished | events.QuarantineCleared):
            self.not_made = deque(still_not_made(self.not_made, what), maxlen=VERDICTS_KEPT)
        heard = Heard(time_s, what)
        if isinstance(what, _OF_ITS_MIGRATION):
            self._of_migration(heard)
        elif isinstance(what, _SIGNS):
            self._sign(heard)
        self._take(what, time_s)

    def _take(self, what: events.Occurrence, time_s: float) -> None:  # noqa: C901 - one case for each event
        match what:
            case events.JobStarted():
                self._begin(what, time_s)
            case events.Protection():
                self.level = Level(what.level)
                self.level_reason = what.reason
            case events.ReportMade():
                self.first_step_s = self.first_step_s or time_s  # the training loop has come round
            case events.CoverageKnown():
                self.coverage = what.coverage
            case events.ProgressMade():
                self._progress(what, time_s)
            case events.SparesChanged():
                self.pool = what
            case events.DevicesUsed():
                self.gpus[what.node] = what.gpus
            case events.HealthVerdict():
                self._verdict(what, time_s)
            case events.QuarantineCleared():
                self.quarantine.pop(what.subject, None)
            case events.WorkerEnded() if what.rank >= 0 and not what.fenced:
                if self.holders.get(what.rank, what.worker) == what.worker:
                    self.lost[what.rank] = ended(what)
            case events.NodeLost():
                self.lost.update(dict.fromkeys(what.ranks, f"its machine {what.node} is lost: {what.reason}"))
            case events.MigrationStarted():
                self._migration_started(what, time_s)
            case events.PhaseChanged():
                self._phase(what, time_s)
            case events.MigrationProgressed():
                self._how_far(what)
            case events.MigrationFinished():
                self._migration_finished(what, time_s)
            case events.MoveNotMade():
                self.not_made.append(what)
            case events.IncidentKept():
                self.incidents.append(what)
            case events.CheckpointSaved():
                self.checkpoint = what
                self.saved_s.append(time_s)
            case events.TakenOver():
                self._taken_over(what, time_s)
            case events.JobFell():
                self.fell = Heard(time_s, what)
            case events.JobRestarted():
                self._restarted(what, time_s)
            case events.RestartDone():
                self._restart_done(what)
            case events.JobFinished():
                self.ended = Heard(time_s, what)

    def _begin(self, what: events.JobStarted, time_s: float) -> None:
        self.run_id = self.run_id or what.run_id
        self.world_size = what.world_size
        self.nodes = what.nodes
        self.started_s = self.started_s or time_s
        self.holders = dict(enumerate(what.holders or spread(what.world_size, what.nodes)))
        self.lost.clear()
        self.ranks_alive = what.world_size
        self.spares_ready = 0

    def _progress(self, what: events.ProgressMade, time_s: float) -> None:
        if what.steps >= 0 and self.first_step_s is None:
            self.first_step_s = time_s
        self.boundary = what.steps
        self.steps_per_s = what.steps_per_s
        self.ranks_alive = what.ranks
        self.spares_ready = what.spares
        if what.steps >= 0:
            self.line.add(time_s, what.steps)

    def _verdict(self, what: events.HealthVerdict, time_s: float) -> None:
        if what.action == "ignore":
            return
        self.verdicts.append(Heard(time_s, what))
        if what.outcome in ("done", REFUSED) and what.quarantine in ("device", "node"):
            subject = what.node if what.quarantine == "node" else what.subject
            if subject not in self.quarantine and len(self.quarantine) < QUARANTINED_KEPT:
                self.quarantine[subject] = QuarantinedSubject(
                    subject, what.node, what.rule, what.reason, time_s, what.ranks
                )

    def _sign(self, heard: Heard) -> None:
        if isinstance(heard.what, events.HealthVerdict) and heard.what.action == "ignore":
            return
        running = self.under_way
        if running is not None:
            running.note(heard)
        else:
            self._signs.append(heard)

    def _of_migration(self, heard: Heard) -> None:
        found = self._newest(getattr(heard.what, "migration", ""))
        if found is not None:
            found.note(heard)

    def _newest(self, name: str) -> MigrationRecord | None:
        return next((m for m in reversed(self.migrations.values()) if m.name == name), None) if name else None

    def _open(self, name: str, kind: str, ranks: tuple[int, ...], reason: str, time_s: float) -> MigrationRecord:
        """Make the record of a migration. A watcher that came late may not have seen the migration start."""
        key = name if name not in self.migrations else f"{name}.{len(self.restarts)}"
        workers = tuple(self.holders[r] for r in ranks if r in self.holders)
        made = MigrationRecord(key, name, kind, ranks, workers, reason, time_s, [kind])
        made.most_heard = self._bounds.heard
        nodes = {agent_of(w) for w in workers}
        of_it = [h for h in self._signs if time_s - h.time_s <= BEFORE_S and _is_about(h.what, ranks, nodes)]
        made.seen = of_it
        self._signs = deque((h for h in self._signs if h not in of_it), maxlen=self._bounds.heard)
        self.migrations[key] = made
        self.forget_stories(self._bounds.migrations)
        return made

    def forget_stories(self, keep: int) -> None:
        """Drop the oldest migrations, so that `keep` stay. What the others cost stays in the totals."""
        while len(self.migrations) > keep:
            del self.migrations[next(iter(self.migrations))]

    @property
    def kept(self) -> int:
        """Return how many events are kept, one by one."""
        of_migrations = sum(len(m.heard) + len(m.seen) + 1 for m in self.migrations.values())
        return of_migrations + len(self.verdicts) + len(self._signs) + len(self.not_made) + len(self.incidents)

    def _migration_started(self, what: events.MigrationStarted, time_s: float) -> None:
        ranks = (what.rank,) if what.rank >= 0 else ()
        found = self._newest(what.migration)
        if found is None or not found.is_under_way:
            found = self._open(what.migration, what.kind, ranks, what.reason, time_s)
            found.by = what.by
        elif found.kind != what.kind:
            found.kind = what.kind
            found.kinds.append(what.kind)
            found.ranks = tuple(dict.fromkeys((*found.ranks, *ranks)))
            found.note(Heard(time_s, what))
        if what.kind not in UNFORCED and found.stands_since_s is None:
            found.stands_since_s = time_s

    def _phase(self, what: events.PhaseChanged, time_s: float) -> None:
        found = self._newest(what.migration)
        if found is None:
            return
        found.phase = what.phase
        found.progress = None
        if what.phase not in ("prepare", "detect") and found.stands_since_s is None:
            found.stands_since_s = time_s

    def _how_far(self, what: events.MigrationProgressed) -> None:
        found = self._newest(what.migration)
        if found is not None and found.is_under_way and found.phase == what.phase:
            found.progress = what

    def _migration_finished(self, what: events.MigrationFinished, time_s: float) -> None:
        found = self._newest(what.migration)
        if found is None or not found.is_under_way:
            found = self._open(what.migration, what.kind, what.ranks, "", time_s)
        found.kind = what.kind
        found.finished = what
        found.ended_s = time_s
        found.outcome = what.outcome
        found.outcome_reason = what.reason
        found.progress = None
        found.ranks = what.ranks or found.ranks
        if len(found.workers) != len(found.ranks):
            found.workers = tuple(self.holders[r] for r in found.ranks if r in self.holders)
        totals = self.totals
        if what.kind != SAVE:  # nobody was to move
            totals.by_outcome[what.outcome] = totals.by_outcome.get(what.outcome, 0) + 1
        totals.standstill_s += found.downtime_s
        if what.outcome == COMMITTED:
            for rank, worker in zip(what.ranks, what.spares):
                self.holders[rank] = worker
                self.lost.pop(rank, None)
                self.moved[rank] = found.key

    def _taken_over(self, what: events.TakenOver, time_s: float) -> None:
        """End the migration that was under way: no event will do so, since the new controller counts its own migrations."""
        running = self.under_way
        if running is not None:
            running.outcome = COMMITTED if what.outcome == COMMITTED else ABANDONED
            running.outcome_reason = what.reason or "its controller ended"
            running.ended_s = time_s

    def _restarted(self, what: events.JobRestarted, time_s: float) -> None:
        running = self.under_way
        if running is not None:
            running.outcome_reason = what.reason
            running.outcome = ABANDONED
            running.ended_s = time_s
        self.restarts.append(Restart(time_s, what))
        self.level = Level.PENDING
        self.level_reason = ""
        self.coverage = {}
        self.pool = None
        self.ended = None
        self.checkpoint = None
        self.boundary = what.boundary
        self.line.go_back(time_s, max(what.boundary, 0))

    def _restart_done(self, what: events.RestartDone) -> None:
        for restart in self.restarts:
            if restart.event.restart == what.restart:
                restart.down_s = what.elapsed_s
        self.fell = None


def _is_about(what: events.Occurrence, ranks: tuple[int, ...], nodes: set[str]) -> bool:
    match what:
        case events.FaultFired() | events.Suspected() | events.WorkerEnded():
            return what.rank in ranks
        case events.HealthVerdict():
            return bool(set(what.ranks) & set(ranks)) or (not what.ranks and what.node in nodes)
        case events.NodeLost():
            return bool(set(what.ranks) & set(ranks))
    return False
