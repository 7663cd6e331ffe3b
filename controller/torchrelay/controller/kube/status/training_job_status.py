"""The status of a TrainingJob: what its summary and its story say. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from torchrelay.controller.kube.status.losses import timestamp
from torchrelay.controller.kube.status.status_builder import RESTARTING, StatusBuilder, pod_of
from torchrelay.controller.kube.status.time_used import NOT_WATCHED, REDONE_SECONDS, USEFUL_SECONDS, TimeUsed
from torchrelay.controller.status import JobSummary

COMES_FURTHER = frozenset({"step", "stepSeconds", USEFUL_SECONDS, REDONE_SECONDS})
"""Fields of a TrainingJob's status that change with each step."""


def job_status(
    now: JobSummary,
    story: StatusBuilder,
    node_of: Callable[[str], str],
    restarts: Sequence[int],
    gathers: str,
    record: str = "",
    holders: str = "",
    used: TimeUsed = NOT_WATCHED,
    conditions: Sequence[Mapping[str, str]] = (),
    lineage: str = "",
) -> dict[str, Any]:
    """Return the status of a TrainingJob. `node_of(pod)`: the pod's node. `lineage`: what its checkpoints are known by.

    `restarts`: at which steps the job has begun again; `gathers`: how far it is with that, or empty. `used`: the job's time.
    `record`, `holders`: what another controller needs to go on with that, and which worker has which rank where not all are named.
    """
    ranks = [
        {
            "rank": r.rank,
            "pod": pod_of(r.worker),
            "node": node_of(pod_of(r.worker)),
            "worker": r.worker,
            "state": r.state,
        }
        for r in now.named
    ]
    told: dict[str, Any] = {
        "phase": RESTARTING.capitalize() if gathers else _phase(now, story),
        "worldSize": now.world_size,
        "generation": now.generation,
        "step": max(0, now.boundary),
        "stepSeconds": round(now.step_s, 4),
        **used.as_status(),
        "rankStates": now.states,
        "ranks": ranks,
        "holders": holders,
        "spares": now.spares_total,
        "sparesWarm": now.spares_warm,
        "protection": now.level,
        "protectionReason": gathers or now.reason,
        "migrations": now.migrations_done,
        "lastMigration": now.last_migration,
        "rungs": story.losses.rungs,
        "losses": story.losses.as_status(),
        "restarts": len(restarts),
        "restartSteps": list(restarts),
        "record": record,
        "lineage": lineage,
        "finishedAt": timestamp(story.finished_s) if story.finished is not None else "",
    }
    listed = [*conditions, *([story.anew] if story.anew is not None else [])]
    return told | ({"conditions": listed} if listed else {})


def _phase(now: JobSummary, story: StatusBuilder) -> str:
    if story.finished is not None:
        return "Failed" if story.finished.exit_code else "Succeeded"
    if any(not m.is_over and m.status for m in story.migrations):
        return "Migrating"
    return "Running" if sum(now.states.values()) == now.world_size else "Pending"
