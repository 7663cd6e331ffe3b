"""What was seen, by kind and subject, for as long as a rule may look back."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass

from torchrelay.protocol.health.kinds import LEVELS, NODE_CONDITION

REMEMBERED_S = 24 * 3600.0
REMEMBERED = 2048
"""Of one kind and subject; a counter that moves every second for longer has said all it can."""


@dataclass(frozen=True)
class SeenEvidence:
    """One piece of evidence. `device`: GPU UUID, port, or empty where it concerns the whole node; `worker`: where it is
    about one process. `code`, `value`: as its kind has them (`kinds`). `time_s`: by the judge's monotonic clock.
    """

    kind: str
    time_s: float
    node: str = ""
    device: str = ""
    worker: str = ""
    code: int = 0
    value: float = 1.0
    detail: str = ""

    @property
    def subject(self) -> str:
        return self.device or self.worker or self.node

    def __str__(self) -> str:
        if self.kind == NODE_CONDITION:
            return f"{self.detail} on {self.node}"
        what = f"XID {self.code}" if self.kind == "xid" else f"{self.kind} {self.code}" if self.code else self.kind
        return f"{what} on {self.subject}"


class History:
    """The evidence of one job, of every node and device."""

    def __init__(self) -> None:
        self._kept: dict[str, dict[tuple[str, str], deque[SeenEvidence]]] = {}

    def add(self, seen: SeenEvidence) -> None:
        by_subject = self._kept.setdefault(seen.kind, {})
        kept = by_subject.setdefault((seen.node, seen.subject), deque(maxlen=REMEMBERED))
        while len(kept) > 1 and seen.time_s - kept[0].time_s > REMEMBERED_S:
            kept.popleft()
        kept.append(seen)

    def of(self, kind: str, node: str, subject: str) -> deque[SeenEvidence]:
        """Return the evidence of this kind about this subject, oldest first."""
        return self._kept.get(kind, {}).get((node, subject), deque())

    def subjects(self, kind: str) -> Iterator[deque[SeenEvidence]]:
        yield from self._kept.get(kind, {}).values()

    def levels(self) -> Iterator[SeenEvidence]:
        """Yield the newest evidence of each level: time alone can make a verdict of it."""
        if not self._kept:
            return  # of most nodes at most times
        for kind in LEVELS:
            for kept in self.subjects(kind):
                if kept:
                    yield kept[-1]

    def forget(self, node: str, subject: str) -> None:
        """Forget what was seen of a subject that a person, or a check, has cleared."""
        for by_subject in self._kept.values():
            by_subject.pop((node, subject), None)
