"""One rehearsal after the other, as a state machine: events in, instructions out. Knows no clock, no network and no job."""

from __future__ import annotations

from dataclasses import dataclass

from torchrelay.protocol.messages import JournalContent, Rehearsed
from torchrelay.protocol.names import REHEARSAL_BROKEN_OFF, REHEARSAL_OPEN

READING_S = 10.0
"""How long a journal may take to come."""
RUNNING_S = 900.0
"""How long a process may take on its way, at the lowest priority."""
STARTING_S = 300.0
"""How long a process that is started for it may take to import what it needs, at the lowest priority, too."""


@dataclass(frozen=True)
class Began:
    """A rehearsal of `rank`, held by `holder`, is due; `spare` does it. Empty: a process is started for it."""

    rank: int
    holder: str
    spare: str
    reason: str


@dataclass(frozen=True)
class ProcessReady:
    """The process that was started for the rehearsal is ready."""

    worker: str


@dataclass(frozen=True)
class NoProcess:
    """No process can rehearse, or none can any more, for `reason`."""

    reason: str


@dataclass(frozen=True)
class JournalCame:
    content: JournalContent


@dataclass(frozen=True)
class ResultCame:
    spare: str
    result: Rehearsed


@dataclass(frozen=True)
class Disturbed:
    """Something has priority, such as a migration, or the spare is no spare any more."""

    reason: str


@dataclass(frozen=True)
class RehearsalTimePassed:
    pass


Event = Began | ProcessReady | NoProcess | JournalCame | ResultCame | Disturbed | RehearsalTimePassed


@dataclass(frozen=True)
class StartProcess:
    """Start a process on the machine of `beside`, unless one is there."""

    beside: str


@dataclass(frozen=True)
class ReadForRehearsal:
    worker: str


@dataclass(frozen=True)
class StartRehearsal:
    """Order the spare to rehearse `rank` up to `boundary`, with what `content` has."""

    request: int
    spare: str
    rank: int
    boundary: int
    content: JournalContent


@dataclass(frozen=True)
class End:
    """Order the spare to end the child that rehearses."""

    request: int
    spare: str


@dataclass(frozen=True)
class Judged:
    """The rehearsal is over. With REHEARSAL_OPEN or REHEARSAL_BROKEN_OFF nothing is known of the rank."""

    result: Rehearsed
    spare: str


Instruction = StartProcess | ReadForRehearsal | StartRehearsal | End | Judged


@dataclass
class _Now:
    began: Began
    spare: str
    request: int
    deadline_s: float
    boundary: int = -1
    """The boundary of the journal, once it is there."""

    @property
    def is_reading(self) -> bool:
        return bool(self.spare) and self.boundary < 0


class Rehearsals:
    """The rehearsals: at most one at a time. Results of those that were broken off are of no interest."""

    def __init__(self) -> None:
        self._now: _Now | None = None
        self._count = 0

    @property
    def rank(self) -> int | None:
        """The rank whose rehearsal is under way; None if none is."""
        return self._now.began.rank if self._now is not None else None

    def awaits_journal_of(self, worker: str) -> bool:
        return self._now is not None and self._now.is_reading and self._now.began.holder == worker

    def handle(self, event: Event, now_s: float) -> list[Instruction]:
        """Take note of an event.

        Return what is to be done. Raises ValueError if a rehearsal begins while another one is under way.
        """
        now = self._now
        if isinstance(event, Began):
            if now is not None:
                raise ValueError(f"a rehearsal of rank {now.began.rank} is under way")
            self._count += 1
            self._now = _Now(event, event.spare, self._count, now_s + (READING_S if event.spare else STARTING_S))
            return [ReadForRehearsal(event.holder) if event.spare else StartProcess(event.holder)]
        if now is None:
            return []
        match event:
            case ProcessReady(worker) if not now.spare:
                now.deadline_s = now_s + READING_S
                now.spare = worker
                return [ReadForRehearsal(now.began.holder)]
            case NoProcess(reason):
                return self._break_off(now, reason, REHEARSAL_OPEN)
            case JournalCame(content) if now.is_reading:
                return self._start(now, content, now_s)
            case ResultCame(spare, result) if spare == now.spare and result.request == now.request:
                self._now = None
                return [Judged(result, spare)]
            case Disturbed(reason):
                return self._break_off(now, reason)
            case RehearsalTimePassed() if now_s >= now.deadline_s:
                return self._break_off(now, _late(now))
        return []

    def _start(self, now: _Now, content: JournalContent, now_s: float) -> list[Instruction]:
        whole = [boundary for boundary, journal in content.boundaries.items() if journal and boundary >= 1]
        if not whole or not content.set_up:
            return self._break_off(now, "no whole journal of it was there")
        now.boundary = max(whole)
        now.deadline_s = now_s + RUNNING_S
        return [StartRehearsal(now.request, now.spare, now.began.rank, now.boundary, content)]

    def _break_off(self, now: _Now, reason: str, outcome: str = REHEARSAL_BROKEN_OFF) -> list[Instruction]:
        self._now = None
        result = Rehearsed(now.request, now.began.rank, now.boundary, outcome, reason)
        end: list[Instruction] = [End(now.request, now.spare)] if now.boundary >= 0 else []
        return [*end, Judged(result, now.spare)]


def _late(now: _Now) -> str:
    if not now.spare:
        return "its process was not ready in time"
    return "its journal did not come" if now.is_reading else "it was not over in time"
