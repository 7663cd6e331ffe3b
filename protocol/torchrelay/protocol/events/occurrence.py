"""All events: their names, and their way into and out of `messages.JobEvent`."""

from __future__ import annotations

import dataclasses
import json
import re
import typing
from typing import Any

from torchrelay.protocol.errors import FrameError
from torchrelay.protocol.events.evidence import (
    FaultFired,
    HealthVerdict,
    QuarantineCleared,
    Suspected,
)
from torchrelay.protocol.events.job import (
    JobFell,
    JobFinished,
    JobRestarted,
    JobStarted,
    Log,
    ProgressMade,
    RestartDone,
    TakenOver,
)
from torchrelay.protocol.events.migrations import (
    CheckpointSaved,
    Decision,
    IncidentKept,
    MigrationFinished,
    MigrationProgressed,
    MigrationStarted,
    MoveNotMade,
    PhaseChanged,
    RankSpread,
)
from torchrelay.protocol.events.processes import (
    DevicesUsed,
    FilesDiffer,
    JournalsKept,
    NodeLost,
    ProcessRespawned,
    SpareDropped,
    SpareMade,
    SparesAsked,
    SparesChanged,
    WorkerEnded,
)
from torchrelay.protocol.events.protection import (
    CoverageKnown,
    Protection,
    RanksHeld,
    RehearsalFinished,
    RehearsalStarted,
    ReportMade,
)
from torchrelay.protocol.messages import JobEvent

Occurrence = (
    JobStarted
    | Protection
    | ReportMade
    | CoverageKnown
    | RehearsalStarted
    | RehearsalFinished
    | RanksHeld
    | ProgressMade
    | FaultFired
    | Suspected
    | HealthVerdict
    | QuarantineCleared
    | MigrationStarted
    | PhaseChanged
    | MigrationProgressed
    | Decision
    | MigrationFinished
    | MoveNotMade
    | RankSpread
    | WorkerEnded
    | SparesChanged
    | SparesAsked
    | SpareMade
    | SpareDropped
    | ProcessRespawned
    | FilesDiffer
    | NodeLost
    | DevicesUsed
    | JournalsKept
    | CheckpointSaved
    | IncidentKept
    | TakenOver
    | JobFell
    | JobRestarted
    | RestartDone
    | JobFinished
    | Log
)

NAMES: dict[type, str] = {
    ReportMade: "rank_report",
    CoverageKnown: "coverage",
    ProgressMade: "progress",
    FaultFired: "fault_injected",
    PhaseChanged: "phase",
    MigrationProgressed: "migration_progress",
    WorkerEnded: "worker_exited",
    IncidentKept: "incident",
    SparesChanged: "spares",
}
for _cls in typing.get_args(Occurrence):
    NAMES.setdefault(_cls, re.sub(r"(?<!^)(?=[A-Z])", "_", _cls.__name__).lower())
CLASSES = {name: cls for cls, name in NAMES.items()}


def to_job_event(occurrence: Occurrence, time_s: float) -> JobEvent:
    """`time_s` is the wall clock's."""
    return JobEvent(time_s, NAMES[type(occurrence)], json.dumps(dataclasses.asdict(occurrence)))


def from_job_event(event: JobEvent) -> Occurrence:
    """Raises FrameError for a name or fields that this version does not know."""
    try:
        values = json.loads(event.fields_json)
    except ValueError as e:
        raise FrameError(f"not an event of this version: {event.name}: {e}") from e
    return from_fields(event.name, values)


def from_fields(name: str, values: Any) -> Occurrence:
    """`values`: the fields as JSON has them. Raises FrameError for a name or fields that this version does not know."""
    try:
        cls = CLASSES[name]
        found: Occurrence = cls(**{k: tuple(v) if isinstance(v, list) else v for k, v in values.items()})
    except (KeyError, TypeError, ValueError, AttributeError) as e:
        raise FrameError(f"not an event of this version: {name}: {type(e).__name__}: {e}") from e
    return found
