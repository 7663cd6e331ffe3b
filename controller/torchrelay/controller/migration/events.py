"""What a migration is told (past facts) and what it asks for (commands)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from torchrelay.protocol.messages import ShimOrder, ShimReport
from torchrelay.protocol.words.causes import MigrationCause
from torchrelay.protocol.words.phases import Phase


@dataclass(frozen=True)
class MoveRequested:
    """Somebody wants the rank off its worker, which is healthy."""

    rank: int
    reason: str
    cause: str = MigrationCause.ASKED.value
    by: str = ""


@dataclass(frozen=True)
class SaveRequested:
    """Somebody wants a checkpoint of the running job, which goes on."""

    reason: str
    by: str = ""


@dataclass(frozen=True)
class ResumeRequested:
    """All ranks are to enter from a just-in-time checkpoint."""

    reason: str


@dataclass(frozen=True)
class SuspicionRaised:
    """The rank seems to hang, since the time `since_s`."""

    rank: int
    reason: str
    since_s: float


@dataclass(frozen=True)
class SuspicionCleared:
    """The suspected rank moves again."""

    rank: int


@dataclass(frozen=True)
class RankLost:
    """`worker` (holder or joiner of `rank`) is dead or is given up, since the time `since_s`."""

    rank: int
    worker: str
    reason: str
    since_s: float
    cause: str = MigrationCause.PROCESS.value


@dataclass(frozen=True)
class WorkerGone:
    """A worker that was fenced exists no more, and neither do its children."""

    worker: str


@dataclass(frozen=True)
class JournalRead:
    """The controller holds the rank's journal."""

    rank: int


@dataclass(frozen=True)
class SpareChosen:
    rank: int
    worker: str
    reason: str


@dataclass(frozen=True)
class NoSpare:
    """`soon`: a spare is on its way; SpareWarm will tell."""

    rank: int
    reason: str
    soon: bool = False


@dataclass(frozen=True)
class SpareWarm:
    """A spare has become available."""


@dataclass(frozen=True)
class BoundaryChosen:
    """Where a planned migration shall stop; `allowance_s` is how long the steps until there should take."""

    boundary: int
    allowance_s: float
    reason: str


@dataclass(frozen=True)
class TargetDecided:
    """At which boundary the new generation starts, and how everybody gets there.

    `actions` is by survivor's rank; `entries` (`enter` or `shadow`), `donors`, `tokens`, `peer_hosts` by lost rank.
    Donors are ranks; in a planned migration the donor of a rank is its leaver. `savers` write tensors into `directory`
    if there is no spare.
    """

    target: int
    reason: str
    actions: Mapping[int, str]
    entries: Mapping[int, str]
    donors: Mapping[int, int]
    tokens: Mapping[int, str]
    peer_hosts: Mapping[int, str]
    offline: bool = False
    savers: tuple[int, ...] = ()
    directory: str = ""
    late: Mapping[int, dict[str, int]] = field(default_factory=dict)
    """By lost rank: what its donor has written since its optimizer step, as in messages.Plan."""
    donor_collectives: Mapping[int, int] = field(default_factory=dict)
    """The same for where its donor stands."""
    helpers: Mapping[int, tuple[int, ...]] = field(default_factory=dict)
    """By lost rank: survivors that hold the same as its donor, and give at the same time."""
    left: str = ""
    """The boundary at which survivors have left their loop, as in messages.Plan."""
    carried: Mapping[int, tuple[str, ...]] = field(default_factory=dict)
    """By lost rank: what comes from its own copy, as in messages.Plan."""
    compared: Mapping[int, int] = field(default_factory=dict)
    """By lost rank: the newest boundary at which it was compared with its donor, as in messages.Plan."""
    lacking: Mapping[int, tuple[str, ...]] = field(default_factory=dict)
    """By lost rank: optimizer state that its donor had there and it had not, as in messages.Plan."""


@dataclass(frozen=True)
class GateToPass:
    """`ranks` stand at a gate that others have passed: they have to be behind it, too, before a target can be decided."""

    ranks: tuple[int, ...]
    reason: str


@dataclass(frozen=True)
class TargetImpossible:
    reason: str


@dataclass(frozen=True)
class RollBackDecided:
    """Nobody holds what a lost rank had: every rank goes back to its copy of boundary `target`, as a new process.

    `steps_redone`: how many steps are done again. `stale`: ranks whose joiners have come too far to go back with them.
    """

    target: int
    steps_redone: int
    reason: str
    stale: tuple[int, ...] = ()


@dataclass(frozen=True)
class Diverged:
    """Ranks that have held the same hold different things, `rank` among them, and nobody can say which of them is right."""

    rank: int
    reason: str


@dataclass(frozen=True)
class RankFinished:
    """The rank's script has reached its end."""

    rank: int


@dataclass(frozen=True)
class CheckpointWritten:
    directory: str


@dataclass(frozen=True)
class CheckpointFailed:
    reason: str


@dataclass(frozen=True)
class FolderChosen:
    """Where a checkpoint goes that could not be written elsewhere."""

    directory: str
    reason: str


@dataclass(frozen=True)
class TimePassed:
    """Nothing but the clock has moved."""


@dataclass(frozen=True)
class Said:
    """A report of the worker that holds `rank`, or that joins as it."""

    rank: int
    worker: str
    report: ShimReport


Event = (
    MoveRequested
    | SaveRequested
    | ResumeRequested
    | SuspicionRaised
    | SuspicionCleared
    | RankLost
    | WorkerGone
    | JournalRead
    | SpareChosen
    | NoSpare
    | SpareWarm
    | BoundaryChosen
    | TargetDecided
    | GateToPass
    | TargetImpossible
    | RollBackDecided
    | Diverged
    | RankFinished
    | CheckpointWritten
    | CheckpointFailed
    | FolderChosen
    | TimePassed
    | Said
)


@dataclass(frozen=True)
class Order:
    """Send `order` to `worker`. Journals in Assign and Plan, and secrets, are left for the controller to fill in."""

    worker: str
    rank: int
    order: ShimOrder


@dataclass(frozen=True)
class FenceWorker:
    """End the worker for good; answered by WorkerGone."""

    worker: str
    reason: str


@dataclass(frozen=True)
class ReadJournal:
    """Answered by JournalRead."""

    rank: int
    worker: str


@dataclass(frozen=True)
class ChooseSpare:
    """Answered by SpareChosen or NoSpare."""

    rank: int


@dataclass(frozen=True)
class ChooseBoundary:
    """Answered by BoundaryChosen. `tries`: how often a boundary turned out to be too near."""

    tries: int


@dataclass(frozen=True)
class DecideTarget:
    """Everybody stands; answered by TargetDecided, GateToPass, TargetImpossible or RollBackDecided.

    `checkpoint`: there is no joiner to be found, or none is wanted.
    """

    checkpoint: bool = False


@dataclass(frozen=True)
class WriteCheckpoint:
    """All parts are saved: answered by CheckpointWritten, FolderChosen or CheckpointFailed."""

    directory: str


@dataclass(frozen=True)
class ChooseFolder:
    """Some parts could not be written: answered by FolderChosen or CheckpointFailed."""

    directory: str
    reason: str


@dataclass(frozen=True)
class PhaseEntered:
    """`before_s` is how long the phase before took."""

    phase: Phase
    before_s: float


@dataclass(frozen=True)
class RankMoved:
    """From now on `worker` holds `rank`."""

    rank: int
    worker: str


@dataclass(frozen=True)
class LoseRank:
    """A loss that this migration leaves to the next one."""

    lost: RankLost


@dataclass(frozen=True)
class Noted:
    """A decision and its reason, for the operator. `warning`: something is wrong that the migration does not put right."""

    text: str
    warning: bool = False


@dataclass(frozen=True)
class Ignored:
    """The event changed nothing: it is of another generation, or does not belong to this phase."""

    text: str


@dataclass(frozen=True)
class Finished:
    """The migration is over. `fatal`: the job cannot go on."""

    outcome: str
    reason: str
    fatal: bool = False
    directory: str = field(default="")


Instruction = (
    Order
    | FenceWorker
    | ReadJournal
    | ChooseSpare
    | ChooseBoundary
    | DecideTarget
    | WriteCheckpoint
    | ChooseFolder
    | PhaseEntered
    | RankMoved
    | LoseRank
    | Noted
    | Ignored
    | Finished
)
