"""From what is known to samples. Pure: nothing here asks a clock or keeps anything."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from torchrelay.controller.metrics.tally import JobTally, Totals
from torchrelay.protocol.level import Level
from torchrelay.protocol.metrics import table as t
from torchrelay.protocol.metrics.samples import Histogram, Sample
from torchrelay.protocol.phases import KINDS


@dataclass(frozen=True)
class JobFacts:
    """What a job looks like now. `ranks`, `spares`: how many are in each state."""

    level: str
    boundary: int
    ranks: Mapping[str, int]
    spares: Mapping[str, int]
    spares_wanted: int
    quarantined: Mapping[str, int]


def job_samples(labels: tuple[str, str], facts: JobFacts, tally: JobTally, now_s: float) -> Iterator[Sample]:
    """`labels`: namespace and name of the job; `now_s`: the time of day, as events have it."""
    account = tally.account
    for level in Level:
        yield Sample(t.JOB_PROTECTION, (*labels, level.value), float(facts.level == level))
    for metric, counts, values in (
        (t.JOB_RANKS, facts.ranks, t.RANK_STATES),
        (t.JOB_SPARES, facts.spares, tuple(t.SPARE_STATES)),
        (t.JOB_QUARANTINED, facts.quarantined, (t.DEVICE, t.NODE)),
        (t.JOB_MIGRATIONS, tally.migrations, t.REPORTED_OUTCOMES),
        (t.JOB_TIME, account.seconds, tuple(t.USES)),
    ):
        for value in values:
            yield Sample(metric, (*labels, value), counts.get(value, 0))
    yield Sample(t.JOB_BOUNDARY, labels, max(facts.boundary, 0))
    yield Sample(t.JOB_STEPS, labels, account.steps)
    yield Sample(t.JOB_STEPS_REDONE, labels, account.steps_redone)
    yield Sample(t.JOB_GOODPUT, labels, account.goodput(now_s))
    yield Sample(t.JOB_SPARES_WANTED, labels, facts.spares_wanted)


def total_samples(totals: Totals) -> Iterator[Sample]:
    """Zeros are told, too: a counter that appears with 1 has not increased, for Prometheus. Phases alone would be too many."""
    for kind in KINDS:
        yield Sample(t.MIGRATION_STOP, (kind,), totals.stops.get(kind) or Histogram(t.MIGRATION_STOP.buckets))
    for (kind, phase), found in sorted(totals.phases.items()):
        yield Sample(t.MIGRATION_PHASES, (kind, phase), found)
    yield Sample(t.TRANSFERRED, (), totals.transferred_bytes)
