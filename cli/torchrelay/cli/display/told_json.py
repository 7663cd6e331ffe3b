"""The objects that `--json` prints of a running job, with the words that events and metrics have for the same things."""

from __future__ import annotations

from dataclasses import dataclass

from torchrelay.cli.folders.folder import KnownRun, RungTaken
from torchrelay.protocol.messages import Coverage, JobStatus, MigrationProgress, RankStatus, SpareStatus


@dataclass(frozen=True)
class SparesJson:
    """`wanted`, `ready`, `making`, `reason` as in the event `spares`; `processes`: each spare."""

    wanted: int
    ready: int
    making: int
    reason: str
    processes: tuple[SpareStatus, ...]


@dataclass(frozen=True)
class QuarantineLine:
    """A device or node (`subject`, as in events) that is given no rank, and why."""

    subject: str
    reason: str


@dataclass(frozen=True)
class StatusJson:
    """One job of `torchrelay status --json`. `coverage`: as in `torchrelay check --json` and the event; None before it is known.

    `steps`: that every rank has done. `started_s`: by the wall clock. `moving`: how far a migration is that moves tensors, or None.
    `rungs`: each way to go on that was taken after a loss, with what it cost.
    """

    run_id: str
    name: str
    folder: str
    started_s: float
    world_size: int
    generation: int
    steps: int
    steps_per_s: float
    protection: str
    protection_reason: str
    coverage: Coverage | None
    spares: SparesJson
    migrations_done: int
    last_migration: str
    moving: MigrationProgress | None
    ranks: tuple[RankStatus, ...]
    ranks_spread: int
    spread_reason: str
    quarantine: tuple[QuarantineLine, ...]
    health: tuple[str, ...]
    restarts: tuple[str, ...]
    rungs: tuple[RungTaken, ...]


def spares_of(status: JobStatus) -> SparesJson:
    return SparesJson(
        status.spares_wanted, status.spares_warm, status.spares_making, status.spares_reason, status.spares
    )


def quarantined(status: JobStatus) -> tuple[QuarantineLine, ...]:
    found = (line.partition(": ") for line in status.quarantine)
    return tuple(QuarantineLine(subject, reason) for subject, _, reason in found)


def status_of(status: JobStatus, run: KnownRun) -> StatusJson:
    return StatusJson(
        run_id=status.run_id,
        name=run.name,
        folder=run.working_folder,
        started_s=run.started_s,
        world_size=status.world_size,
        generation=status.generation,
        steps=max(min((r.boundary for r in status.ranks), default=0), 0),
        steps_per_s=status.steps_per_s,
        protection=status.protection,
        protection_reason=status.protection_reason,
        coverage=next(iter(status.coverage), None),
        spares=spares_of(status),
        migrations_done=status.migrations_done,
        last_migration=status.last_migration,
        moving=next(iter(status.moving), None),
        ranks=status.ranks,
        ranks_spread=status.ranks_spread,
        spread_reason=status.spread_reason,
        quarantine=quarantined(status),
        health=status.health,
        restarts=run.restarts,
        rungs=run.rungs,
    )


@dataclass(frozen=True)
class QuarantineJson:
    """`torchrelay quarantine list --json`: devices and nodes, each with its reason."""

    run_id: str
    quarantine: tuple[QuarantineLine, ...]
