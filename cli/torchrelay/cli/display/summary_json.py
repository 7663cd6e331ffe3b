"""What a run has been, for programs."""

from __future__ import annotations

import dataclasses
from typing import Any

from torchrelay.cli.display.rungs import rungs_taken
from torchrelay.cli.display.summary import RunSummary


def as_json(summary: RunSummary, exit_code: int, never_fired: list[str]) -> dict[str, Any]:
    """The object of `torchrelay run --json`, documented in docs/cli.md."""
    return {
        "run_id": summary.run_id,
        "exit_code": exit_code,
        "reason": summary.reason,
        "by": summary.ended_by,
        "world_size": summary.world_size,
        "steps": max(summary.boundary, 0),
        "wall_s": round(max(summary.ended_s - summary.started_s, 0.0), 3),
        "protection": summary.protection.value,
        "protection_reason": summary.protection_reason,
        "unprotected": list(summary.unprotected),
        "rehearsals": [dataclasses.asdict(r) for _, r in sorted(summary.rehearsals.items())],
        "migrations": [dataclasses.asdict(m) | {"downtime_total_s": m.total_s} for m in summary.moves],
        "moves_not_made": [dataclasses.asdict(move) for move in summary.moves_not_made],
        "health_verdicts": [dataclasses.asdict(verdict) for verdict in summary.health_verdicts],
        "steps_redone": summary.steps_redone,
        "downtime_s": summary.downtime_s,
        "downtime_total_s": sum(summary.downtime_s.values()),
        "spares": dataclasses.asdict(summary.pool) if summary.pool is not None else None,
        "spares_made": list(summary.spares_made),
        "spares_dropped": [dataclasses.asdict(dropped) for dropped in summary.spares_dropped],
        "respawns": [dataclasses.asdict(respawn) for respawn in summary.respawns],
        "faults_injected": list(summary.faults_injected),
        "faults_not_injected": never_fired,
        "checkpoint": summary.checkpoint,
        "restarts": [dataclasses.asdict(r) for r in summary.restarts],
        "rungs": [dataclasses.asdict(rung) for rung in rungs_taken(summary)],
        "incidents": [dataclasses.asdict(incident) for incident in summary.incidents],
    }
