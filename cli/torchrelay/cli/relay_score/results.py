"""The results of cells, appended one by one: what was run is not run again after an interruption."""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass
from pathlib import Path

from torchrelay.cli.struck_runs.cells import Cell
from torchrelay.protocol.errors import UserError


@dataclass(frozen=True)
class Result:
    """One cell and what became of it. `wall_s`: how long the whole run took. `steps_redone`: where the numbers are the same;
    -1: not written down. `together`: how many cells that run had. `where`: backend and device."""

    cell: Cell
    outcome: str
    reason: str
    wall_s: float
    commit: str
    steps_redone: int = -1
    together: int = 1
    where: str = "gloo on cpu"


@dataclass(frozen=True)
class FellShort:
    """A run of several cells that does not speak for each of them. `outcome`: of the run as a whole."""

    entry: str
    faults: list[str]
    outcome: str
    reason: str


class Results:
    """The file with one JSON object for each cell, and another file for shared runs that fell short.

    Without `resume` they start empty. With it, their results must have the same `where`: otherwise raises UserError.
    """

    def __init__(self, path: Path, resume: bool, where: str) -> None:
        self._where = where
        self._path = path
        self._short_path = path.with_name("fell-short.jsonl")
        self._by_name: dict[str, Result] = {}
        self.short: list[FellShort] = []
        if not resume:
            self._short_path.unlink(missing_ok=True)
        elif self._short_path.exists():
            lines = self._short_path.read_text(encoding="utf-8").splitlines()
            self.short = [FellShort(**json.loads(line)) for line in lines]
        if resume and path.exists():
            for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
                self._take(number, line)
        else:
            path.write_text("", encoding="utf-8")

    def _take(self, number: int, line: str) -> None:
        try:
            record = json.loads(line)
            result = Result(**{**record, "cell": Cell(**record["cell"])})
        except (ValueError, TypeError, KeyError) as e:
            raise UserError(
                f"{self._path}, line {number}: not a result: {e}; run without --resume to start anew"
            ) from e
        if result.where != self._where:
            raise UserError(
                f"{self._path} has results of {result.where}, and these would be of {self._where}: give another --out"
            )
        self._by_name[result.cell.name] = result

    def add(self, result: Result) -> None:
        self._by_name[result.cell.name] = result
        with open(self._path, "a", encoding="utf-8") as file:
            file.write(json.dumps(dataclasses.asdict(result)) + "\n")

    def fell_short(self, short: FellShort) -> None:
        self.short.append(short)
        with open(self._short_path, "a", encoding="utf-8") as file:
            file.write(json.dumps(dataclasses.asdict(short)) + "\n")

    def of(self, cell: Cell) -> Result | None:
        return self._by_name.get(cell.name)

    @property
    def all(self) -> list[Result]:
        return list(self._by_name.values())
