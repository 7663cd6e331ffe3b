"""What a job has told so far, as far as it is kept: for whoever begins to listen late, or listens slowly. No I/O."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from itertools import islice

from torchrelay.protocol.messages import JobEvent

FIRST_EVENTS_KEPT = 100
LATEST_EVENTS_KEPT = 1900
"""How the job began, and what has been since."""
PROGRESS = "progress"
PASSING = (PROGRESS, "migration_progress")
"""Events of these names are for who listens at that moment: of each the newest alone is kept."""


class EventLog:
    """`count`: of all events that were ever told, but for passing ones."""

    def __init__(self) -> None:
        self._first: list[JobEvent] = []
        self._latest: deque[JobEvent] = deque(maxlen=LATEST_EVENTS_KEPT)
        self.newest: dict[str, JobEvent] = {}
        """By name, of those that pass."""
        self.count = 0

    def add(self, event: JobEvent) -> None:
        """Take one that is told now."""
        if event.name in PASSING:
            self.newest[event.name] = event
            return
        self.count += 1
        if len(self._first) < FIRST_EVENTS_KEPT:
            self._first.append(event)
        else:
            self._latest.append(event)

    @property
    def progress(self) -> JobEvent | None:
        """The newest."""
        return self.newest.get(PROGRESS)

    def __iter__(self) -> Iterator[JobEvent]:
        yield from self._first
        yield from self._latest

    def since(self, place: int, most: int) -> tuple[list[JobEvent], int]:
        """Return at most so many events of those after the first `place`, and the place after them.

        Whoever is so late that some are not kept any more is told the next ones that are.
        """
        if place >= self.count:
            return [], place
        if place < len(self._first):
            told = self._first[place : place + most]
            return told, place + len(told)
        oldest = self.count - len(self._latest)
        begin = max(place - oldest, 0)
        told = list(islice(self._latest, begin, begin + most))
        return told, max(place, oldest) + len(told)
