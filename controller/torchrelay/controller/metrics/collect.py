"""From what is known to samples. Pure: nothing here asks a clock or keeps anything."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product

from torchrelay.controller.metrics.tally import JobTally, Totals
from torchrelay.protocol.health.kinds import ACTIONS, DEVICE, NODE, OUTCOMES_OF_VERDICTS
from torchrelay.protocol.messages import RankGap
from torchrelay.protocol.metrics import table as t
from torchrelay.protocol.metrics.metric import Metric
from torchrelay.protocol.metrics.samples import Histogram, Sample
from torchrelay.protocol.names import (
    ALONE,
    BARS,
    BARS_LATER,
    BEHIND_UPDATE,
    GOES_BACK,
    LEFT,
    NO_JOINER,
    PART_OF_STEP,
    REHEARSAL_OUTCOMES,
)
from torchrelay.protocol.words.causes import MigrationCause, ProtectionCause
from torchrelay.protocol.words.level import Level
from torchrelay.protocol.words.phases import DOWNTIME_ROWS, KINDS
from torchrelay.protocol.words.positions import RANK_STATES

WORST_FIRST = (BARS, BARS_LATER, NO_JOINER, ALONE, PART_OF_STEP, BEHIND_UPDATE, GOES_BACK, LEFT)


@dataclass(frozen=True)
class JobFacts:
    """What a job looks like now. `ranks`, `protection`, `spares`, `quarantined`: how many there are of each.

    `costs`: seconds of a step on the training thread; `cost_share`: of a step's processor time.
    """

    level: str
    cause: str
    boundary: int
    ranks: Mapping[str, int]
    protection: Mapping[str, int]
    spares: Mapping[str, int]
    spares_wanted: int
    quarantined: Mapping[str, int]
    step_s: float
    costs: Mapping[str, float]
    cost_share: float
    restarts: int


def rank_protection(level: str, gaps: Sequence[RankGap], world_size: int) -> Counter[str]:
    """How many ranks are protected how far: each by the worst effect of its gaps."""
    known = Level(level)
    if not known.promises:
        return Counter({t.NOTHING if known.is_known else t.PENDING: world_size})
    worst: dict[int, str] = {}
    for effect in WORST_FIRST:
        for gap in gaps:
            if gap.effect == effect:
                for rank in gap.ranks:
                    worst.setdefault(rank, effect)
    found = Counter(worst.values())
    found[t.ANY_MOMENT] = world_size - len(worst)
    return found


def job_samples(labels: tuple[str, str], facts: JobFacts, tally: JobTally, now_s: float) -> Iterator[Sample]:
    """`labels`: namespace and name of the job; `now_s`: the time of day, as events have it."""
    account = tally.account
    for level in Level:
        yield Sample(t.JOB_PROTECTION, (*labels, level.value), float(facts.level == level))
    for cause in ProtectionCause:
        yield Sample(t.JOB_PROTECTION_CAUSE, (*labels, cause.value), float(facts.cause == cause))
    counted: tuple[tuple[Metric, Mapping[str, float], Sequence[str]], ...] = (
        (t.JOB_RANKS, facts.ranks, RANK_STATES),
        (t.JOB_RANK_PROTECTION, facts.protection, tuple(t.RANK_PROTECTION)),
        (t.JOB_SPARES, facts.spares, tuple(t.SPARE_STATES)),
        (t.JOB_QUARANTINED, facts.quarantined, (DEVICE, NODE)),
        (t.JOB_COST, facts.costs, tuple(t.COSTS)),
        (t.JOB_MIGRATIONS, tally.migrations, t.REPORTED_OUTCOMES),
        (t.JOB_TIME, account.seconds, tuple(t.USES)),
    )
    for metric, counts, values in counted:
        for value in values:
            yield Sample(metric, (*labels, value), counts.get(value, 0))
    numbers: tuple[tuple[Metric, float], ...] = (
        (t.JOB_BOUNDARY, max(facts.boundary, 0)),
        (t.JOB_STEPS, account.steps),
        (t.JOB_STEPS_REDONE, account.steps_redone),
        (t.JOB_STEP, facts.step_s),
        (t.JOB_COST_SHARE, facts.cost_share),
        (t.JOB_GOODPUT, account.goodput(now_s)),
        (t.JOB_SPARES_WANTED, facts.spares_wanted),
        (t.JOB_RESTARTS, facts.restarts),
        (t.JOB_INCIDENTS, tally.incidents),
        (t.JOB_MOVES_NOT_MADE, tally.moves_not_made),
    )
    for metric, number in numbers:
        yield Sample(metric, labels, number)


def total_samples(totals: Totals) -> Iterator[Sample]:
    """Zeros are told, too: a counter that appears with 1 has not increased, for Prometheus."""
    for kind in KINDS:
        yield Sample(t.MIGRATION_STOP, (kind,), totals.stops.get(kind) or Histogram(t.MIGRATION_STOP.buckets))
        for phase in DOWNTIME_ROWS:
            phases = totals.phases.get((kind, phase)) or Histogram(t.MIGRATION_PHASES.buckets)
            yield Sample(t.MIGRATION_PHASES, (kind, phase), phases)
    for kind, outcome, cause in product(KINDS, t.REPORTED_OUTCOMES, MigrationCause):
        yield Sample(t.MIGRATIONS, (kind, outcome, cause.value), totals.migrations[kind, outcome, cause.value])
    for action, outcome in product(ACTIONS, OUTCOMES_OF_VERDICTS):
        yield Sample(t.VERDICTS, (action, outcome), totals.verdicts[action, outcome])
    for outcome in REHEARSAL_OUTCOMES:
        yield Sample(t.REHEARSALS, (outcome,), totals.rehearsals[outcome])
    yield Sample(t.TRANSFERRED, (), totals.transferred_bytes)
