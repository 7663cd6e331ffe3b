"""The runs that a dashboard shows, and what was last made of each: however many look, it is made once a second."""

from __future__ import annotations

import dataclasses
import json
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

from torchrelay.dashboard import view

EVERY_S = 1.0
RUNS_KEPT = 50
CARDS_A_SECOND = 200


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


@dataclass(frozen=True)
class RunsNote:
    """What the list of runs says beside them. `nothing`: where there is none; `command`: begins one. `note`: empty for nothing."""

    nothing: str = "No job of this user runs on this machine."
    command: str = "torchrelay run --nproc-per-node 4 --spares 1 train.py"
    note: str = ""


@dataclass
class _Made:
    at_s: float
    sections: dict[str, str]


class Hub:
    """`clock`: seconds, for how old something is. `most`: of runs. `about`: what is said beside the list of them.

    `noun`: what people call one.
    """

    def __init__(
        self,
        clock: Callable[[], float] = time.monotonic,
        most: int = RUNS_KEPT,
        about: Callable[[], RunsNote] = RunsNote,
        noun: str = "run",
    ) -> None:
        self._sources: dict[str, Source] = {}
        self._made: dict[str, _Made] = {}
        self._clock, self._most, self._about = clock, most, about
        self._listed: _Made | None = None
        self.noun = noun

    def put(self, run_id: str, source: Source) -> None:
        """A run to show; of those that are over the oldest goes, where there are too many."""
        self._sources[run_id], self._listed = source, None
        if len(self._sources) > self._most:
            over = (i for i, s in self._sources.items() if s.seen().record.ended is not None)
            oldest = next(over, next(iter(self._sources)))
            self.drop(oldest)

    def drop(self, run_id: str) -> None:
        """Forget a run, if it is there."""
        self._listed = None
        self._sources.pop(run_id, None)
        self._made.pop(run_id, None)

    def find(self, run_id: str) -> Source | None:
        return self._sources.get(run_id)

    def listed(self) -> dict[str, str]:
        """The list of runs, those that go on first, and what is said beside it, as JSON. Of many runs it is made more rarely."""
        now_s = self._clock()
        about, made = _text(dataclasses.asdict(self._about())), self._listed
        if made is None or now_s - made.at_s >= max(EVERY_S, len(self._sources) / CARDS_A_SECOND):
            cards = [view.card(s.seen()) | {"run": run_id} for run_id, s in reversed(self._sources.items())]
            runs = _text(sorted(cards, key=lambda c: bool(c["over"])))
            made = self._listed = _Made(now_s, {"runs": runs})
        return {"about": about, **made.sections}

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
