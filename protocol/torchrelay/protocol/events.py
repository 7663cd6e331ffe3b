"""What a job tells the world: one dataclass for each event, and their way into and out of `messages.JobEvent`.

docs/events.md documents them; a test holds the two together. Ranks and workers are as in `names`, times in seconds.
"""

from __future__ import annotations

import dataclasses
import json
import re
import typing
from dataclasses import field
from typing import Any

from torchrelay.protocol.errors import FrameError
from torchrelay.protocol.messages import JobEvent
from torchrelay.protocol.messages.message import message


@message(frozen=True)
class JobStarted:
    """All nodes are there. `holders`: the worker that begins with each rank, in their order."""

    run_id: str
    world_size: int
    spares: int
    nodes: tuple[str, ...]
    holders: tuple[str, ...] = ()


@message(frozen=True)
class Protection:
    """How far the job is protected from now on: a `level.Level`, and what an operator has to know of it.

    `cause`: a `causes.ProtectionCause`.
    """

    level: str
    reason: str
    cause: str = ""


@message(frozen=True)
class ReportMade:
    """The protection report of one rank: where its training loop is, what is kept, what cannot be."""

    rank: int
    file: str
    line: int
    device_state_bytes: int
    journal_bytes: int
    tensors: int
    unprotected: tuple[str, ...]
    notes: tuple[str, ...]
    gaps: tuple[dict[str, Any], ...] = ()


@message(frozen=True)
class CoverageKnown:
    """The protection report of the whole job, when it is known and again when its level or its gaps change.

    `report`: the fields of messages.Coverage.
    """

    report: dict[str, Any]


@message(frozen=True)
class RehearsalStarted:
    """A child process of `spare` goes the way of a joiner that takes over `rank`, up to `boundary`. Training goes on.

    `spare` may be a process that was started for this.
    """

    rank: int
    boundary: int
    spare: str


@message(frozen=True)
class RehearsalFinished:
    """`outcome`: one of names.REHEARSAL_OUTCOMES. `reason`: why it is not `same`; `gaps`: each with text, file and line."""

    rank: int
    world_size: int
    boundary: int
    spare: str
    outcome: str
    reason: str
    gaps: tuple[dict[str, Any], ...]
    took_s: float


@message(frozen=True)
class RanksHeld:
    """`torchrelay check`: every rank stands still, having done `boundary` steps, or the job needs no more steps to be judged."""

    boundary: int


@message(frozen=True)
class ProgressMade:
    """At most twice a second. `boundary`: steps that every rank has done; `ranks`: alive; `spares`: ready."""

    boundary: int
    steps_per_s: float
    ranks: int
    spares: int


@message(frozen=True)
class FaultFired:
    """A fault of --inject is about to strike."""

    fault: str
    rank: int
    step: int


@message(frozen=True)
class Suspected:
    """A rank seems to hang. `evidence`: what every rank was doing, in words; `stack`: where its training thread was, innermost
    call first, empty if that could not be read.
    """

    rank: int
    reason: str
    evidence: str
    stack: tuple[str, ...] = ()


@message(frozen=True)
class HealthVerdict:
    """What evidence against a device, a node or the program means.

    `action`: ignore, watch, migrate, replace or stop; `rule`: the row of the policy; `subject`: the device, worker or node.
    `outcome`: done, told (nothing was to be done), observed (the policy only observes) or refused (`reason` says why).
    `quarantine`: no, device or node.
    """

    action: str
    rule: str
    node: str
    subject: str
    ranks: tuple[int, ...]
    outcome: str
    quarantine: str
    reason: str


@message(frozen=True)
class QuarantineCleared:
    """A device or a node may be used again. `by`: who has cleared it; empty if its reason is over."""

    subject: str
    reason: str
    by: str = ""


@message(frozen=True)
class MigrationStarted:
    """`kind`: one of phases.KINDS; in a resume and a save `rank` is -1: all of them. `cause`: a `causes.MigrationCause`.

    `by`: who asked for it: the local user, or the API's; empty where nobody did.
    """

    migration: str
    kind: str
    rank: int
    reason: str
    generation: int
    cause: str = ""
    by: str = ""


@message(frozen=True)
class PhaseChanged:
    """`phase`: a `phases.Phase`, which begins; `before_s`: how long the one before it took."""

    migration: str
    phase: str
    before_s: float


@message(frozen=True)
class MigrationProgressed:
    """About once a second while a phase reads or writes tensors; the fields are those of messages.MigrationProgress."""

    migration: str
    phase: str
    done_bytes: int
    total_bytes: int
    elapsed_s: float
    bytes_per_s: float
    left_s: float


@message(frozen=True)
class Decision:
    """A decision with its reason. `migration` is empty where it belongs to none."""

    migration: str
    text: str


@message(frozen=True)
class MigrationFinished:
    """`outcome`: committed, abandoned, checkpoint (the job ends with one), saved (it goes on), or cleared (a suspicion that did
    not hold).

    `downtime_s` has a number for each of phases.DOWNTIME_ROWS: how long training stood still for it. `beside_s`: what a
    planned migration prepared while training went on. `ranks`, `spares`: all that moved; `rank`, `spare`: the first.
    """

    migration: str
    kind: str
    outcome: str
    rank: int
    spare: str
    ranks: tuple[int, ...]
    spares: tuple[str, ...]
    steps_redone: int
    downtime_s: dict[str, float]
    beside_s: float
    transferred_bytes: int
    generation: int
    reason: str
    cause: str = ""


@message(frozen=True)
class MoveNotMade:
    """A planned migration that was asked for did not take place. `migration` is empty if it never began.

    `asked`: the words of whoever asked; `reason`: why nothing came of it.
    """

    migration: str
    rank: int
    asked: str
    reason: str


@message(frozen=True)
class RankSpread:
    """A rank was moved so that the loss of one machine does not end the job: the `moves`th one under this controller."""

    rank: int
    node: str
    moves: int


@message(frozen=True)
class WorkerEnded:
    """`rank` is -1 for a spare; `fenced`: torchrelay ended it."""

    worker: str
    rank: int
    exit_code: int
    signal: int
    fenced: bool


@message(frozen=True)
class SparesChanged:
    """How many spares there are to be, are ready, and are being made. `reason`: why no more are made, where there are too few."""

    wanted: int
    ready: int
    making: int
    reason: str


@message(frozen=True)
class SparesAsked:
    """Somebody (`by`) has asked for `count` spares more, on `node` if that is not empty; there are to be `wanted` from now on."""

    count: int
    node: str
    wanted: int
    by: str


@message(frozen=True)
class SpareMade:
    """A new spare was started, in the place of a worker that has ended; `in_place_of` is empty for one beyond those."""

    worker: str
    node: str
    in_place_of: str


@message(frozen=True)
class SpareDropped:
    """A spare came to nothing before anybody needed it."""

    worker: str
    reason: str


@message(frozen=True)
class ProcessRespawned:
    """A process is started in the place of a lost rank's: the `count`th within an hour, of `limit` that may be."""

    rank: int
    node: str
    boundary: int
    count: int
    limit: int


@message(frozen=True)
class NodeLost:
    """A node was given up as a whole: `ranks` are replaced elsewhere, its spares are gone."""

    node: str
    ranks: tuple[int, ...]
    spares: int
    reason: str


@message(frozen=True)
class JournalsKept:
    """From here on the rank survives the loss of its node: `node` has whole copies of its journals.

    `all_ranks`: so do all others.
    """

    rank: int
    node: str
    boundary: int
    all_ranks: bool


@message(frozen=True)
class CheckpointSaved:
    """A checkpoint is complete: a just-in-time one, or one that was asked for."""

    directory: str
    boundary: int
    resume_command: str
    resume_commands: dict[str, str] = field(default_factory=dict)
    """Of each machine, where there are several."""


@message(frozen=True)
class IncidentKept:
    """A migration failed that the report had promised. `directory`: what is needed to find the cause; empty where none is kept.

    `level`, `promised`: what was said when it began; `reason`: why it failed.
    """

    migration: str
    directory: str
    level: str
    promised: str
    reason: str


@message(frozen=True)
class TakenOver:
    """A new controller leads the job. `outcome`: what became of the migration that was under way, if any ranks had begun it:
    committed, abandoned or anew.
    """

    outcome: str
    reason: str


@message(frozen=True)
class JobFell:
    """The job cannot go on in its processes: `rank` is lost, or its script has failed by itself.

    `boundary`: the furthest that any rank has reached.

    `directory`: the just-in-time checkpoint of `saved_boundary`; empty where there is none, because of `refused`.
    `losses_at_step`: how often these processes have lost the rank at this step.
    """

    rank: int
    exit_code: int
    reason: str
    boundary: int
    by_script: bool
    directory: str
    saved_boundary: int
    refused: str
    losses_at_step: int = 1


@message(frozen=True)
class JobRestarted:
    """The command starts all processes anew. `rung`: a name of cli.restarting.choice; `tried`: those above it, and why not.

    `boundary`: where all ranks enter, from `directory`; -1: the script runs from its beginning.
    `steps`: done before, to be done again.
    """

    restart: int
    rung: str
    directory: str
    boundary: int
    steps: int
    reason: str
    tried: tuple[str, ...]


@message(frozen=True)
class RestartDone:
    """All ranks train again, so long after the loss."""

    restart: int
    elapsed_s: float


@message(frozen=True)
class JobFinished:
    """The last event, unless the command starts the job anew. `by`: who has asked for it; empty where nobody did."""

    exit_code: int
    reason: str
    by: str = ""


@message(frozen=True)
class Log:
    """`level`: info, warning or error."""

    level: str
    text: str


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
    | NodeLost
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
    CoverageKnown: "report",
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
