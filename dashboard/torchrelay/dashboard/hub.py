"""The runs that a dashboard shows, and what was last made of each: however many look, it is made once a second."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

from torchrelay.dashboard import view

EVERY_S = 1.0
RUNS_KEPT = 50


@dataclass(frozen=True)
class Answer:
    """What became of something that was asked for."""

    done: bool
    message: str


class Source(Protocol):
    """Where a run's events come from."""

    def seen(self) -> view.Seen:
        """The run as it is now."""

    async def migrate(self, rank: int, reason: str) -> Answer:
        """Asks for a planned move."""

    async def clear(self, subject: str, reason: str, check: bool) -> Answer:
        """Asks for the end of a quarantine."""


@dataclass
class _Made:
    at_s: float
    sections: dict[str, str]


class Hub:
    """`clock`: seconds, for how old something is."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._sources: dict[str, Source] = {}
        self._made: dict[str, _Made] = {}
        self._clock = clock

    def put(self, run_id: str, source: Source) -> None:
        """A run to show; of those that are over the oldest goes, where there are too many."""
        self._sources[run_id] = source
        if len(self._sources) > RUNS_KEPT:
            over = (i for i, s in self._sources.items() if s.seen().record.ended is not None)
            oldest = next(over, next(iter(self._sources)))
            del self._sources[oldest]
            self._made.pop(oldest, None)

    def find(self, run_id: str) -> Source | None:
        return self._sources.get(run_id)

    def cards(self) -> str:
        """All runs as JSON, those that go on first."""
        made = [view.card(s.seen()) | {"run": run_id} for run_id, s in reversed(self._sources.items())]
        return _text(sorted(made, key=lambda c: bool(c["over"])))

    def sections(self, run_id: str) -> dict[str, str]:
        """Of a run, each section as JSON. Raises KeyError for one that is not known."""
        source, now_s = self._sources[run_id], self._clock()
        made = self._made.get(run_id)
        if made is None or now_s - made.at_s >= EVERY_S:
            values = view.sections(source.seen())
            made = self._made[run_id] = _Made(now_s, {name: _text(value) for name, value in values.items()})
        return made.sections


def _text(value: Any) -> str:
    return json.dumps(value, separators=(",", ":"))
