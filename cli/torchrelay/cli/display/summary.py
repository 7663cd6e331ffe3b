"""What a run has been so far: a fold over its events. No I/O."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from torchrelay.dashboard.run_facts import still_not_made
from torchrelay.protocol import events
from torchrelay.protocol.messages import Coverage
from torchrelay.protocol.names import REHEARSAL_BROKEN_OFF
from torchrelay.protocol.options.faults import Fault
from torchrelay.protocol.transport.wire import from_plain
from torchrelay.protocol.words.level import Level
from torchrelay.protocol.words.phases import ABANDONED, CLEARED, COMMITTED, DOWNTIME_ROWS, RESUME, SAVE
from torchrelay.protocol.words.signals import PROGRAM_SIGNALS

UNDER_WAY = "under way"


@dataclass(frozen=True)
class MigrationSummary:
    """One migration. `outcome`: `under way`, or one of phases.OUTCOMES. `downtime_s` by row of phases.DOWNTIME_ROWS.

    `reason`: why the ranks had to move; `outcome_reason`: why it ended as it did. `beside_s`: prepared beside training.
    """

    migration: str
    kind: str = ""
    ranks: tuple[int, ...] = ()
    reason: str = ""
    phase: str = ""
    outcome: str = UNDER_WAY
    outcome_reason: str = ""
    spares: tuple[str, ...] = ()
    steps_redone: int = 0
    downtime_s: Mapping[str, float] = field(default_factory=dict)
    beside_s: float = 0.0
    transferred_bytes: int = 0

    @property
    def total_s(self) -> float:
        return sum(self.downtime_s.values())


@dataclass(frozen=True)
class RestartSummary:
    """All processes were started anew. `down_s`: until all ranks trained again, None if they never did.

    `boundary`: where all ranks entered, -1 for the script's beginning. `steps`: done before, to be done again.
    """

    restart: int
    rung: str
    directory: str
    boundary: int
    steps: int
    reason: str
    tried: tuple[str, ...] = ()
    down_s: float | None = None


@dataclass(frozen=True)
class RunSummary:
    """The summary of a run. `exit_code` is None while the job runs. `boundary` -1: no step yet.

    `started_s`, `ended_s`: by the wall clock.
    """

    run_id: str = ""
    is_kept: bool = True
    """Its events are kept when it is over, so that `explain` and `report` find them."""
    world_size: int = 0
    protection: Level = Level.PENDING
    protection_reason: str = ""
    was_protected: bool = False
    """At some time somebody could rely on it."""
    boundary: int = -1
    steps_per_s: float = 0.0
    ranks: int = 0
    spares: int = 0
    moving: events.MigrationProgressed | None = None
    """How far the migration under way is, while it moves tensors."""
    pool: events.SparesChanged | None = None
    """How many spares there are to be, are ready, and are being made."""
    spares_made: tuple[str, ...] = ()
    spares_dropped: tuple[events.SpareDropped, ...] = ()
    respawns: tuple[events.ProcessRespawned, ...] = ()
    respawned_s: tuple[tuple[int, float], ...] = ()
    """The ranks of these, and when: the limit for an hour goes on under another controller."""
    imports_differ: bool = False
    """Files that the script imports are not the same on all machines: a restart without one of them knows it from here."""
    faults_injected: tuple[str, ...] = ()
    migrations: tuple[MigrationSummary, ...] = ()
    moves_not_made: tuple[events.MoveNotMade, ...] = ()
    health_verdicts: tuple[events.HealthVerdict, ...] = ()
    unprotected: tuple[str, ...] = ()
    rehearsals: Mapping[int, events.RehearsalFinished] = field(default_factory=dict)
    """By rank, the latest one that was not broken off."""
    coverage: Coverage | None = None
    """The protection report of the job, once it is known."""
    has_begun: bool = False
    """All of these processes were there."""
    held: bool = False
    """A check has come to its end: every rank stands still, or there is nothing more to learn."""
    checkpoint: str = ""
    resume_commands: Mapping[str, str] = field(default_factory=dict)
    """By machine, what goes on from it there, where there are several."""
    incidents: tuple[events.IncidentKept, ...] = ()
    """Promises that were not kept."""
    killed: tuple[str, ...] = ()
    """Those of these processes that something else has ended, such as the kernel or a person."""
    fall: events.JobFell | None = None
    """Why the job cannot go on in its processes."""
    restarts: tuple[RestartSummary, ...] = ()
    first_migration: int = 0
    """Where those of these processes begin among `migrations`."""
    exit_code: int | None = None
    reason: str = ""
    ended_by: str = ""
    """Who has asked for the end; empty where nobody did."""
    started_s: float = 0.0
    ended_s: float = 0.0

    def migration(self, name: str) -> MigrationSummary | None:
        return next((m for m in self.migrations if m.migration == name), None)

    @property
    def moves(self) -> tuple[MigrationSummary, ...]:
        """Return the migrations as a reader counts them: no starts from checkpoints, no saves, no suspicions that did not hold."""
        return tuple(m for m in self.migrations if m.kind not in (RESUME, SAVE) and m.outcome != CLEARED)

    @property
    def committed(self) -> tuple[MigrationSummary, ...]:
        return tuple(m for m in self.moves if m.outcome == COMMITTED)

    @property
    def steps_redone(self) -> int:
        return sum(m.steps_redone for m in self.committed)

    @property
    def downtime_s(self) -> dict[str, float]:
        """Return the seconds of downtime by phase, summed over all committed migrations."""
        return {row: sum(m.downtime_s.get(row, 0.0) for m in self.committed) for row in DOWNTIME_ROWS}

    @property
    def has_entered(self) -> bool:
        """Return whether all ranks of these processes have entered from a checkpoint."""
        return any(m.kind == RESUME and m.outcome == COMMITTED for m in self.migrations[self.first_migration :])

    @property
    def steps_of_restarts(self) -> int:
        return sum(r.steps for r in self.restarts)

    @property
    def down_s_of_restarts(self) -> float:
        return sum(r.down_s or 0.0 for r in self.restarts)

    @property
    def began_with(self) -> str:
        """Return the reason of the first of the latest restarts after which nothing trained; empty if the latest one did train."""
        reason = ""
        for r in reversed(self.restarts):
            if r.down_s is not None:
                break
            reason = r.reason
        return reason

    def holders(self, first: Iterable[str]) -> tuple[str, ...]:
        """Return which worker has each rank now. `first`: which began with it."""
        now = list(first)
        for m in self.migrations[self.first_migration :]:
            if m.outcome == COMMITTED:
                for rank, spare in zip(m.ranks, m.spares):
                    now[rank] = spare
        return tuple(now)


def faults_that_never_fired(wanted: Iterable[Fault], summary: RunSummary) -> list[str]:
    """Return the faults of --inject that no rank reported, as often as they were asked for."""
    missing = Counter(map(str, wanted)) - Counter(summary.faults_injected)
    return list(missing.elements())


def has_planned_without_migration(wanted: Iterable[Fault], summary: RunSummary) -> bool:
    """Return whether a `planned` fault of --inject fired, and nothing came of it."""
    asked = {fault.as_asked for fault in wanted}
    return any(move.asked in asked for move in summary.moves_not_made)


def fold(s: RunSummary, event: events.Occurrence, time_s: float) -> RunSummary:  # noqa: C901 - one case for each event
    """Return the summary after one more event, which happened at `time_s`."""
    match event:
        case events.JobStarted():
            size = event.world_size
            began_s = s.started_s if s.restarts else time_s
            began = replace(s, run_id=event.run_id, world_size=size, ranks=size, spares=event.spares)
            return replace(began, has_begun=True, started_s=began_s)
        case events.Protection():
            level = Level(event.level)
            relied = s.was_protected or level.promises
            return replace(s, protection=level, protection_reason=event.reason, was_protected=relied)
        case events.ReportMade():
            new = tuple(text for text in event.unprotected if text not in s.unprotected)
            return replace(s, unprotected=s.unprotected + new)
        case events.CoverageKnown():
            return replace(s, coverage=from_plain(Coverage, event.coverage))
        case events.RehearsalFinished() if event.outcome != REHEARSAL_BROKEN_OFF:
            return replace(s, rehearsals={**s.rehearsals, event.rank: event})
        case events.RanksHeld():
            return replace(s, held=True, boundary=event.steps)
        case events.ProgressMade():
            return replace(
                s, boundary=event.steps, steps_per_s=event.steps_per_s, ranks=event.ranks, spares=event.spares
            )
        case events.SparesChanged():
            return replace(s, pool=event)
        case events.SpareMade():
            return replace(s, spares_made=(*s.spares_made, event.worker))
        case events.SpareDropped():
            return replace(s, spares_dropped=(*s.spares_dropped, event))
        case events.ProcessRespawned():
            return replace(s, respawns=(*s.respawns, event), respawned_s=(*s.respawned_s, (event.rank, time_s)))
        case events.FilesDiffer():
            return replace(s, imports_differ=True)
        case events.FaultFired():
            return replace(s, faults_injected=(*s.faults_injected, event.fault))
        case events.MigrationStarted():
            ranks = () if event.rank < 0 else (event.rank,)
            return _with(s, event.migration, kind=event.kind, ranks=ranks, reason=event.reason)
        case events.PhaseChanged():
            return replace(_with(s, event.migration, phase=event.phase), moving=None)
        case events.MigrationProgressed():
            return replace(s, moving=event)
        case events.MigrationFinished():
            left = still_not_made(s.moves_not_made, event)
            return replace(_finished(s, event), moving=None, moves_not_made=left)
        case events.QuarantineCleared():
            return replace(s, moves_not_made=still_not_made(s.moves_not_made, event))
        case events.HealthVerdict():
            return replace(s, health_verdicts=(*s.health_verdicts, event))
        case events.MoveNotMade():
            return replace(s, moves_not_made=(*s.moves_not_made, event))
        case events.CheckpointSaved():
            return replace(s, checkpoint=event.directory, resume_commands=event.resume_commands)
        case events.IncidentKept():
            return replace(s, incidents=(*s.incidents, event))
        case events.TakenOver():
            return _taken_over(s, event)
        case events.WorkerEnded() if not event.fenced and event.signal and event.signal not in PROGRAM_SIGNALS:
            return replace(s, killed=(*s.killed, event.worker))
        case events.JobFell():
            return replace(s, fall=event)
        case events.JobRestarted():
            return _begun_anew(s, event)
        case events.RestartDone():
            done = (replace(r, down_s=event.elapsed_s) if r.restart == event.restart else r for r in s.restarts)
            return replace(s, restarts=tuple(done))
        case events.JobFinished():
            return replace(s, exit_code=event.exit_code, reason=event.reason, ended_by=event.by, ended_s=time_s)
    return s


def _finished(s: RunSummary, event: events.MigrationFinished) -> RunSummary:
    return _with(
        s,
        event.migration,
        kind=event.kind,
        ranks=event.ranks,
        outcome=event.outcome,
        outcome_reason=event.reason,
        spares=event.spares,
        steps_redone=event.steps_redone,
        downtime_s=dict(event.downtime_s),
        beside_s=event.beside_s,
        transferred_bytes=event.transferred_bytes,
    )


def _begun_anew(s: RunSummary, event: events.JobRestarted) -> RunSummary:
    """Drop what is known of the old processes and their protection: it says nothing of the new ones."""
    over = (
        replace(m, outcome=ABANDONED, outcome_reason=event.reason) if m.outcome == UNDER_WAY else m
        for m in s.migrations
    )
    values = {f.name: getattr(event, f.name) for f in dataclasses.fields(event)}
    return replace(
        s,
        has_begun=False,
        protection=Level.PENDING,
        protection_reason="",
        boundary=max(event.boundary, -1),
        migrations=tuple(over),
        coverage=None,
        pool=None,
        killed=(),
        fall=None,
        restarts=(*s.restarts, RestartSummary(**values)),
        first_migration=len(s.migrations),
        checkpoint="",
        exit_code=None,
        reason="",
        ended_by="",
    )


def _taken_over(s: RunSummary, event: events.TakenOver) -> RunSummary:
    """End the migration that was under way: no event will do so, since the new controller counts its own migrations."""
    outcome = COMMITTED if event.outcome == COMMITTED else ABANDONED
    reason = event.reason or "its controller ended before any rank took part"
    for m in s.migrations:
        if m.outcome == UNDER_WAY:
            s = _with(s, m.migration, outcome=outcome, outcome_reason=reason)
    return s


def _with(s: RunSummary, name: str, **changes: Any) -> RunSummary:
    # A watcher that came late hears of migrations that it has not seen start.
    if s.migration(name) is None:
        s = replace(s, migrations=(*s.migrations, MigrationSummary(name)))
    return replace(s, migrations=tuple(replace(m, **changes) if m.migration == name else m for m in s.migrations))
