"""Counts what events tell: of one job, and of all jobs of this controller."""

from __future__ import annotations

from collections import Counter

from torchrelay.controller.metrics.account import Account
from torchrelay.protocol.events import CLASSES, MigrationFinished, Occurrence, from_job_event
from torchrelay.protocol.messages import JobEvent
from torchrelay.protocol.metrics.samples import Histogram
from torchrelay.protocol.metrics.table import MIGRATION_PHASES, MIGRATION_STOP
from torchrelay.protocol.phases import CLEARED

COUNTED = ("job_started", "progress", "migration_started", "migration_finished", "job_finished")
"""Names of events that change a number; the others are not read."""
assert all(name in CLASSES for name in COUNTED)


class Totals:
    """Of all jobs since this controller began: they stay when a job is forgotten."""

    def __init__(self) -> None:
        self.stops: dict[str, Histogram] = {}
        self.phases: dict[tuple[str, str], Histogram] = {}
        self.transferred_bytes = 0

    def take(self, event: Occurrence) -> None:
        """Only migrations that are over matter here."""
        if not isinstance(event, MigrationFinished) or event.outcome == CLEARED:
            return
        self.transferred_bytes += event.transferred_bytes
        self.stops.setdefault(event.kind, Histogram(MIGRATION_STOP.buckets)).observe(sum(event.downtime_s.values()))
        for phase, seconds in event.downtime_s.items():
            if seconds > 0:
                key = event.kind, phase
                self.phases.setdefault(key, Histogram(MIGRATION_PHASES.buckets)).observe(seconds)


class JobTally:
    """Of one job; what is counted for all goes on to `totals`."""

    def __init__(self, totals: Totals) -> None:
        self._totals = totals
        self.account = Account()
        self.migrations: Counter[str] = Counter()
        """By outcome."""

    def hear(self, told: JobEvent) -> None:
        """Takes an event as watchers get it."""
        if told.name in COUNTED:
            self.take(from_job_event(told), told.time_s)

    def take(self, event: Occurrence, time_s: float) -> None:
        """`time_s`: the time of day at which it happened."""
        self.account.take(event, time_s)
        self._totals.take(event)
        if isinstance(event, MigrationFinished) and event.outcome != CLEARED:
            self.migrations[event.outcome] += 1
