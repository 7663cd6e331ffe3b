"""What a record of a run is made of: its migrations, restarts, and what is in quarantine."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from torchrelay.protocol import events
from torchrelay.protocol.words.phases import COMMITTED
from torchrelay.protocol.words.rank_words import WAITS_FOR_SPARE

UNDER_WAY = "under way"


@dataclass(frozen=True)
class Bounds:
    """How much one record keeps. `heard`: events of one migration, or before it."""

    migrations: int = 1000
    heard: int = 120


USUAL_BOUNDS = Bounds()


@dataclass(frozen=True)
class ClusterJob:
    """A job by its names in a cluster."""

    namespace: str
    name: str

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}"


def still_not_made(
    moves: Iterable[events.MoveNotMade], since: events.MigrationFinished | events.QuarantineCleared
) -> tuple[events.MoveNotMade, ...]:
    """Return the moves that are worth telling after an event: what waited may have taken place since, or not be wanted."""

    def is_settled(move: events.MoveNotMade) -> bool:
        if not move.reason.endswith(WAITS_FOR_SPARE):
            return False
        return isinstance(since, events.QuarantineCleared) or (since.outcome == COMMITTED and move.rank in since.ranks)

    return tuple(move for move in moves if not is_settled(move))


@dataclass(frozen=True)
class Heard:
    """One event, and when it was told, in seconds since the epoch."""

    time_s: float
    what: events.Occurrence


@dataclass
class MigrationRecord:
    """One migration. `key` is unique in the run. `name` is the controller's, which counts anew when all processes start anew.

    `workers`: which held `ranks` before, where that is known.
    """

    key: str
    name: str
    kind: str
    ranks: tuple[int, ...]
    workers: tuple[str, ...]
    reason: str
    started_s: float
    kinds: list[str]
    by: str = ""
    """Who asked for it; empty where nobody did."""
    seen: list[Heard] = field(default_factory=list)
    heard: list[Heard] = field(default_factory=list)
    phase: str = ""
    progress: events.MigrationProgressed | None = None
    """Of its phase, while that moves tensors."""
    stands_since_s: float | None = None
    most_heard: int = Bounds.heard
    outcome: str = UNDER_WAY
    outcome_reason: str = ""
    ended_s: float | None = None
    finished: events.MigrationFinished | None = None

    @property
    def is_under_way(self) -> bool:
        return self.outcome == UNDER_WAY

    @property
    def downtime_s(self) -> float:
        return sum(self.finished.downtime_s.values()) if self.finished is not None else 0.0

    def note(self, heard: Heard) -> None:
        if len(self.heard) < self.most_heard:
            self.heard.append(heard)


@dataclass(frozen=True)
class QuarantinedSubject:
    """A device or a node that is given no rank. `node`: where it is; `rule`: the row of the policy that put it there."""

    subject: str
    node: str
    rule: str
    reason: str
    since_s: float
    ranks: tuple[int, ...] = ()


@dataclass
class Restart:
    """All processes were started anew at `time_s`; `down_s`: until all ranks trained again, None as long as they do not."""

    time_s: float
    event: events.JobRestarted
    down_s: float | None = None


@dataclass
class RunTotals:
    """Totals of the whole run. They include migrations that are no longer kept one by one."""

    by_outcome: dict[str, int] = field(default_factory=dict)
    standstill_s: float = 0.0
