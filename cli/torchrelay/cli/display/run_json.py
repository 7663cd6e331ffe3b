"""The object of `torchrelay run --json`: what a run has been, for programs. No I/O."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torchrelay.cli.display.rungs import rungs_taken
from torchrelay.cli.display.summary import MigrationSummary, RestartSummary, RunSummary
from torchrelay.cli.folders.folder import RungTaken
from torchrelay.protocol import events


@dataclass(frozen=True)
class MigrationJson(MigrationSummary):
    """`downtime_total_s`: the sum of `downtime_s`."""

    downtime_total_s: float = 0.0


@dataclass(frozen=True)
class RunJson:
    """Documented in docs/cli.md. `by`: who has asked for the end; empty where nobody did. `steps`: that every rank has done.

    `steps_redone`, `downtime_s`: of committed migrations together. `spares`: None before it is known how many there are.
    """

    run_id: str
    exit_code: int
    reason: str
    by: str
    world_size: int
    steps: int
    wall_s: float
    protection: str
    protection_reason: str
    unprotected: tuple[str, ...]
    rehearsals: tuple[events.RehearsalFinished, ...]
    migrations: tuple[MigrationJson, ...]
    moves_not_made: tuple[events.MoveNotMade, ...]
    health_verdicts: tuple[events.HealthVerdict, ...]
    steps_redone: int
    downtime_s: Mapping[str, float]
    downtime_total_s: float
    spares: events.SparesChanged | None
    spares_made: tuple[str, ...]
    spares_dropped: tuple[events.SpareDropped, ...]
    respawns: tuple[events.ProcessRespawned, ...]
    faults_injected: tuple[str, ...]
    faults_not_injected: tuple[str, ...]
    checkpoint: str
    restarts: tuple[RestartSummary, ...]
    rungs: tuple[RungTaken, ...]
    incidents: tuple[events.IncidentKept, ...]


def as_json(summary: RunSummary, exit_code: int, never_fired: Sequence[str]) -> dict[str, Any]:
    """Return what is printed. `never_fired`: faults of --inject that no rank has met."""
    return dataclasses.asdict(
        RunJson(
            run_id=summary.run_id,
            exit_code=exit_code,
            reason=summary.reason,
            by=summary.ended_by,
            world_size=summary.world_size,
            steps=max(summary.boundary, 0),
            wall_s=round(max(summary.ended_s - summary.started_s, 0.0), 3),
            protection=summary.protection.value,
            protection_reason=summary.protection_reason,
            unprotected=summary.unprotected,
            rehearsals=tuple(r for _, r in sorted(summary.rehearsals.items())),
            migrations=tuple(map(_migration, summary.moves)),
            moves_not_made=summary.moves_not_made,
            health_verdicts=summary.health_verdicts,
            steps_redone=summary.steps_redone,
            downtime_s=summary.downtime_s,
            downtime_total_s=sum(summary.downtime_s.values()),
            spares=summary.pool,
            spares_made=summary.spares_made,
            spares_dropped=summary.spares_dropped,
            respawns=summary.respawns,
            faults_injected=summary.faults_injected,
            faults_not_injected=tuple(never_fired),
            checkpoint=summary.checkpoint,
            restarts=summary.restarts,
            rungs=rungs_taken(summary),
            incidents=summary.incidents,
        )
    )


def _migration(m: MigrationSummary) -> MigrationJson:
    values = {f.name: getattr(m, f.name) for f in dataclasses.fields(m)}
    return MigrationJson(**values, downtime_total_s=m.total_s)
