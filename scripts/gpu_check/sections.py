"""One section of the check: what it found, and where that is kept.

Each result is written as soon as its section ends: a check that is cut off has kept what it knew.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any


class SectionError(Exception):
    """A section that could not be done; the message says where to look."""


@dataclass(frozen=True)
class Found:
    """What a section measured, and what is wrong with it: nothing if all is as it should be."""

    facts: Mapping[str, Any]
    problems: tuple[str, ...] = ()


@dataclass(frozen=True)
class Result:
    section: str
    problems: tuple[str, ...]
    facts: Mapping[str, Any]
    elapsed_s: float


@dataclass
class Report:
    """Writes results to `folder/results.jsonl`, and says them on stdout."""

    folder: Path
    results: list[Result] = field(default_factory=list)

    def add(self, name: str, section: Callable[[], Found]) -> Result:
        """Do a section. One that cannot be done is a result too: the other sections can still tell something."""
        started_s = time.monotonic()
        print(f"== {name}", flush=True)
        try:
            found = section()
        except SectionError as error:
            found = Found({}, (str(error),))
        result = Result(name, found.problems, found.facts, round(time.monotonic() - started_s, 1))
        self.results.append(result)
        with (self.folder / "results.jsonl").open("a") as file:
            file.write(json.dumps(asdict(result)) + "\n")
        for key, value in result.facts.items():
            print(f"   {key}: {_in_words(value)}")
        for problem in result.problems:
            print(f"   WRONG: {problem}")
        print(f"   {'wrong' if result.problems else 'as it should be'}, {result.elapsed_s:.1f} s", flush=True)
        return result

    @property
    def failed(self) -> list[str]:
        return [result.section for result in self.results if result.problems]


def _in_words(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.4g}"
    if isinstance(value, list):
        return ", ".join(map(_in_words, value))
    if isinstance(value, dict):
        return "; ".join(f"{key} {_in_words(part)}" for key, part in value.items())
    return str(value)
