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
    """The answer to a request of a page."""

    done: bool
    message: str


class Source(Protocol):
    """Where a run's events come from. `by`: the name of whose token something is asked with; empty where tokens have no names."""

    def seen(self) -> view.Seen:
        """Return the run as it is now."""

    async def migrate(self, rank: int, reason: str, by: str) -> Answer:
        """Ask for a planned move."""

    async def clear(self, subject: str, reason: str, check: bool, by: str) -> Answer:
        """Ask for the end of a quarantine."""


@dataclass(frozen=True)
class RunsNote:
    """The text beside the list of runs. `nothing`: if there is no run; `command`: begins one. `note`: may be empty."""

    nothing: str = "No job of this user runs on this machine."
    command: str = "torchrelay run --nproc-per-node 4 --spares 1 train.py"
    note: str = ""


@dataclass
class _Made:
    at_s: float
    sections: dict[str, str]


class Hub:
    """The runs that a dashboard shows.

    `clock`: in seconds, tells how old something is. `most`: how many runs are kept. `about`: makes the note beside their list.
    `noun`: what people call one of them.
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
        self._clock = clock
        self._most = most
        self._about = about
        self._listed: _Made | None = None
        self.noun = noun

    def put(self, run_id: str, source: Source) -> None:
        """Add a run. If there are too many, drop the oldest run that is over, or else the oldest of all."""
        self._sources[run_id] = source
        self._listed = None
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
        """Return the list of runs, running ones first, and the note beside it, as JSON. A long list is made anew more rarely."""
        now_s = self._clock()
        about = _text(dataclasses.asdict(self._about()))
        made = self._listed
        if made is None or now_s - made.at_s >= max(EVERY_S, len(self._sources) / CARDS_A_SECOND):
            cards = [view.card(s.seen()) | {"run": run_id} for run_id, s in reversed(self._sources.items())]
            runs = _text(sorted(cards, key=lambda c: bool(c["over"])))
            made = self._listed = _Made(now_s, {"runs": runs})
        return {"about": about, **made.sections}

    def sections(self, run_id: str) -> dict[str, str]:
        """Return each section of a run's page as JSON. Raises KeyError for a run that is not known."""
        source = self._sources[run_id]
        now_s = self._clock()
        made = self._made.get(run_id)
        if made is None or now_s - made.at_s >= EVERY_S:
            values = view.sections(source.seen())
            made = self._made[run_id] = _Made(now_s, {name: _text(value) for name, value in values.items()})
        return made.sections


def _text(value: Any) -> str:
    return json.dumps(value, separators=(",", ":"))
