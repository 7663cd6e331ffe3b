"""What a run's protection cost, and what it saved, against a restart from a checkpoint for each loss. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from torchrelay.dashboard.record import RunRecord
from torchrelay.dashboard.run_facts import MigrationRecord
from torchrelay.protocol.words.phases import COMMITTED, PLANNED, SAVE

HOUR_S = 3600.0


@dataclass(frozen=True)
class Assumed:
    """What the run's events do not say, for the comparison: how often it would save, and how long a restart takes.

    A loss at a random moment costs half the time between two checkpoints on average, and the restart.
    """

    checkpoint_every_s: float
    restart_s: float

    @property
    def per_loss_s(self) -> float:
        return self.checkpoint_every_s / 2 + self.restart_s


@dataclass(frozen=True)
class FaultCost:
    """One migration or restart. `downtime_s`: how long training stood still, or fell back, for it."""

    name: str
    what: str
    reason: str
    outcome: str
    downtime_s: float
    steps_redone: int


@dataclass(frozen=True)
class CostReport:
    """Times of devices are times of all ranks, or spares, together. `goodput`: useful time divided by wall time, 0 to 1.

    `goodput` and `redone_s` are None where they are not known.
    """

    run_id: str
    ranks: int
    wall_s: float
    steps: int
    goodput: float | None
    faults: tuple[FaultCost, ...]
    losses_survived: int
    moves_done: int
    standstill_s: float
    redone_s: float | None
    spare_device_h: float
    lost_device_h: float
    restart_device_h: float
    counted_from_saved: int
    """Of the losses and moves, those after a checkpoint that was really saved, from which a restart would have begun."""
    assumed: Assumed
    not_protected: tuple[str, ...]

    @property
    def saved_device_h(self) -> float:
        """Return what restarts would have cost, less the cost of migrations and spares; negative if protection did not pay."""
        return self.restart_device_h - self.lost_device_h - self.spare_device_h


def cost_report(record: RunRecord, now_s: float, assumed: Assumed) -> CostReport:
    """Return the report of a run until `now_s`, or until its end."""
    time = record.useful_time(now_s)
    migrations = [m for m in record.migrations.values() if m.kind != SAVE]
    done = [m for m in migrations if m.outcome == COMMITTED]
    survived, moved = (sum((m.kind == PLANNED) is planned for m in done) for planned in (False, True))
    restarts_s, counted = restarts_cost([m.started_s for m in done], record.saved_s, assumed)
    spares = record.pool.wanted if record.pool is not None else record.spares_ready
    lost_s = time.standstill_s + time.redone_s + time.restart_s
    return CostReport(
        record.run_id,
        record.world_size,
        time.wall_s,
        max(record.boundary, 0),
        time.share,
        (*map(_migrated, migrations), *_restarts(record)),
        survived,
        moved,
        time.standstill_s,
        time.redone_s,
        spares * time.wall_s / HOUR_S,
        record.world_size * lost_s / HOUR_S,
        record.world_size * restarts_s / HOUR_S,
        counted,
        assumed,
        tuple(
            f"{gap['text']} (ranks {', '.join(map(str, gap['ranks'][:8]))})" for gap in record.coverage.get("gaps", ())
        ),
    )


def restarts_cost(lost_s: Iterable[float], saved_s: Sequence[float], assumed: Assumed) -> tuple[float, int]:
    """Return the seconds that restarts would have cost, and for how many a checkpoint that was saved before them counts.

    `lost_s`: when ranks were lost or moved; `saved_s`: when checkpoints were saved. One that is older than half of the assumed
    time between two counts for nothing: a job that saves so often would have had a newer one.
    """
    cost_s = 0.0
    counted = 0
    for at_s in lost_s:
        since_s = min((at_s - s for s in saved_s if s <= at_s), default=math.inf)
        is_real = since_s <= assumed.checkpoint_every_s / 2
        cost_s += (since_s if is_real else assumed.checkpoint_every_s / 2) + assumed.restart_s
        counted += is_real
    return cost_s, counted


def _migrated(m: MigrationRecord) -> FaultCost:
    redone = m.finished.steps_redone if m.finished is not None else 0
    return FaultCost(m.key, m.kind, m.reason, m.outcome, m.downtime_s, redone)


def _restarts(record: RunRecord) -> list[FaultCost]:
    return [
        FaultCost(
            f"restart {r.event.restart}",
            r.event.rung,
            r.event.reason,
            "all started anew",
            r.down_s or 0.0,
            r.event.steps,
        )
        for r in record.restarts
    ]
