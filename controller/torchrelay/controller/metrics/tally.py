"""Counts what events tell: of one job, and of all jobs of this controller."""

from __future__ import annotations

from collections import Counter

from torchrelay.protocol.events import (
    NAMES,
    HealthVerdict,
    IncidentKept,
    JobFinished,
    JobStarted,
    MigrationFinished,
    MigrationStarted,
    MoveNotMade,
    Occurrence,
    ProgressMade,
    RehearsalFinished,
    from_job_event,
)
from torchrelay.protocol.messages import JobEvent
from torchrelay.protocol.metrics.account import Account
from torchrelay.protocol.metrics.samples import Histogram
from torchrelay.protocol.metrics.table import MIGRATION_PHASES, MIGRATION_STOP
from torchrelay.protocol.words.causes import MigrationCause
from torchrelay.protocol.words.phases import CLEARED

COUNTED = frozenset(
    NAMES[kind]
    for kind in (
        HealthVerdict,
        IncidentKept,
        JobFinished,
        JobStarted,
        MigrationFinished,
        MigrationStarted,
        MoveNotMade,
        ProgressMade,
        RehearsalFinished,
    )
)
"""Events that change a number. The others are not read."""


class Totals:
    """The counts of all jobs since this controller began. They stay when a job is forgotten."""

    def __init__(self) -> None:
        self.stops: dict[str, Histogram] = {}
        self.phases: dict[tuple[str, str], Histogram] = {}
        self.migrations: Counter[tuple[str, str, str]] = Counter()
        """The number of migrations by kind, outcome and cause."""
        self.verdicts: Counter[tuple[str, str]] = Counter()
        self.rehearsals: Counter[str] = Counter()
        self.transferred_bytes = 0

    def take(self, event: Occurrence) -> None:
        """Count an event, if it changes one of these numbers."""
        if isinstance(event, HealthVerdict):
            self.verdicts[event.action, event.outcome] += 1
        elif isinstance(event, RehearsalFinished):
            self.rehearsals[event.outcome] += 1
        elif isinstance(event, MigrationFinished) and event.outcome != CLEARED:
            self._migration(event)

    def _migration(self, event: MigrationFinished) -> None:
        self.migrations[event.kind, event.outcome, event.cause or MigrationCause.PROCESS.value] += 1
        self.transferred_bytes += event.transferred_bytes
        self.stops.setdefault(event.kind, Histogram(MIGRATION_STOP.buckets)).observe(sum(event.downtime_s.values()))
        for phase, seconds in event.downtime_s.items():
            if seconds > 0:
                key = event.kind, phase
                self.phases.setdefault(key, Histogram(MIGRATION_PHASES.buckets)).observe(seconds)


class JobTally:
    """The counts of one job. Events go on to `totals`, which counts for all jobs."""

    def __init__(self, totals: Totals) -> None:
        self._totals = totals
        self.account = Account()
        self.migrations: Counter[str] = Counter()
        """The number of migrations by outcome."""
        self.incidents = 0
        self.moves_not_made = 0

    def hear(self, told: JobEvent) -> None:
        """Count an event as watchers get it."""
        if told.name in COUNTED:
            self.take(from_job_event(told), told.time_s)

    def take(self, event: Occurrence, time_s: float) -> None:
        """Count an event. `time_s`: the time of day at which it happened."""
        self.account.take(event, time_s)
        self._totals.take(event)
        if isinstance(event, MigrationFinished) and event.outcome != CLEARED:
            self.migrations[event.outcome] += 1
        elif isinstance(event, IncidentKept):
            self.incidents += 1
        elif isinstance(event, MoveNotMade):
            self.moves_not_made += 1
