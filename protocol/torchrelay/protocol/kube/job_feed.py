"""What the controller of a cluster tells the dashboard beside it: lines of JSON over a unix socket in their pod.

What the dashboard says there is in `dashboard_asks`.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from torchrelay.protocol.errors import FrameError
from torchrelay.protocol.messages import JobEvent

STILL_THERE_S = 5.0
"""The controller says so often at least that it is there."""
LONGEST_LINE_BYTES = 32 << 20
"""The beginning of a job of 131,072 ranks names all of its workers."""


@dataclass(frozen=True)
class FeedLeader:
    """`pod`: the controller that tells this, `leader`: the one that has the lease, empty where nobody has it."""

    pod: str
    leader: str

    @property
    def leads(self) -> bool:
        return bool(self.pod) and self.pod == self.leader


@dataclass(frozen=True)
class JobSeen:
    """A job that is looked after from now on, or another one of its name: then its `lineage` is another one.

    `owner`: KIND/NAME of what a person made. `taken_over`: it trained before this controller led.
    """

    namespace: str
    job: str
    lineage: str
    owner: str
    taken_over: bool


@dataclass(frozen=True)
class JobTold:
    """An event of a job."""

    namespace: str
    job: str
    event: JobEvent


@dataclass(frozen=True)
class JobPlaces:
    """Agent -> the node of its pod, of all agents of a job."""

    namespace: str
    job: str
    nodes: dict[str, str]


@dataclass(frozen=True)
class JobGone:
    """Nothing of a job is looked after any more."""

    namespace: str
    job: str


@dataclass(frozen=True)
class BarredSubject:
    """What a Quarantine names. `device`: empty for the whole node. `name`: the resource's."""

    name: str
    node: str
    device: str
    reason: str


@dataclass(frozen=True)
class Barred:
    """All Quarantines that hold."""

    subjects: tuple[BarredSubject, ...]


@dataclass(frozen=True)
class AskAnswered:
    """The answer to an ask of the dashboard. `number`: the ask's."""

    number: int
    done: bool
    message: str


FeedLine = FeedLeader | JobSeen | JobTold | JobPlaces | JobGone | Barred | AskAnswered
_KINDS: dict[str, type] = {
    c.__name__: c for c in (FeedLeader, JobSeen, JobTold, JobPlaces, JobGone, Barred, AskAnswered)
}


def pack(line: FeedLine) -> bytes:
    """Return the line with its end."""
    # What goes in is shared, not copied: a controller packs thousands of events in a second.
    fields: dict[str, Any] = {"kind": type(line).__name__, **vars(line)}
    if isinstance(line, JobTold):
        fields["event"] = vars(line.event)
    elif isinstance(line, Barred):
        fields["subjects"] = [vars(subject) for subject in line.subjects]
    return json.dumps(fields, separators=(",", ":")).encode() + b"\n"


def parse(text: bytes) -> FeedLine:
    """Read a line of the feed. Raises FrameError for a line that this version does not know."""
    try:
        fields: dict[str, Any] = json.loads(text)
        kind = _KINDS[fields.pop("kind")]
        if kind is JobTold:
            fields["event"] = JobEvent(**fields["event"])
        elif kind is Barred:
            fields["subjects"] = tuple(BarredSubject(**s) for s in fields["subjects"])
        elif kind is JobPlaces:
            fields["nodes"] = {str(agent): str(node) for agent, node in fields["nodes"].items()}
        line: FeedLine = kind(**fields)
    except (ValueError, TypeError, KeyError, AttributeError) as e:
        raise FrameError(f"not a line of this version's feed: {text[:80]!r}: {e}") from e
    return line
