"""`torchrelay bench relay-score`, from its options to its files."""

from __future__ import annotations

import json
import shutil
import signal
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console

from torchrelay.cli import narrate
from torchrelay.cli.relay_score import entries as corpus_entries
from torchrelay.cli.relay_score import plot, provenance, report, run_cell
from torchrelay.cli.relay_score.cells import PHASES, Cell, all_cells, spread
from torchrelay.cli.relay_score.classify import IDENTICAL, WRONG, classify
from torchrelay.cli.relay_score.entries import Entry
from torchrelay.cli.relay_score.references import References
from torchrelay.cli.relay_score.results import Result, Results
from torchrelay.cli.teller import make_console
from torchrelay.protocol.errors import UserError

KEPT_FILES = ("events.jsonl", "stderr", "stdout")
"""Of a cell that is not identical: what it takes to find out why."""


@dataclass(frozen=True)
class Options:
    """The command line. `cells`: how many without `full`. `page`: a page of documentation with a place for the results."""

    entries: tuple[str, ...]
    phases: tuple[str, ...]
    kinds: tuple[str, ...]
    ranks: tuple[str, ...]
    seed: int
    cells: int
    full: bool
    out: Path
    resume: bool
    corpus: Path | None
    page: Path | None = None


def relay_score(options: Options) -> int:
    """Runs cells and writes what became of them. 0, or 1 if a run ended with wrong numbers. Raises UserError."""
    signal.signal(signal.SIGTERM, _end)
    corpus = corpus_entries.find_corpus(options.corpus)
    everything = corpus_entries.load(corpus, PHASES)
    chosen = corpus_entries.select(everything, list(options.entries))
    left_out = {e.name: f"needs {', '.join(e.missing())}" for e in chosen if e.missing()}
    able = [e for e in chosen if e.name not in left_out]
    cells = all_cells(able, options.seed, options.phases, options.kinds, options.ranks)
    if not options.full:
        cells = spread(cells, options.cells, options.seed)
    options.out.mkdir(parents=True, exist_ok=True)
    versions = provenance.versions(p for e in everything for p in e.requires)
    results = Results(options.out / "results.jsonl", options.resume)
    references = References(options.out / "references", corpus, everything, versions)
    work = _Work(
        corpus, options.out, results, references, {e.name: e for e in able}, left_out, make_console(sys.stderr)
    )
    work.run(cells)
    about = {
        "commit": provenance.commit(corpus),
        "versions": versions,
        "processors": provenance.processors(),
        "seed": options.seed,
    }
    order = [e.name for e in everything]
    _write(options.out, results.all, order, about, left_out)
    if options.page is not None:
        _put_into(options.page, report.as_markdown(results.all, order, about))
    return 1 if any(r.outcome == WRONG for r in results.all) else 0


def _put_into(page: Path, table: str) -> None:
    """Raises UserError where there is no place for it."""
    try:
        page.write_text(report.with_results(page.read_text(encoding="utf-8"), table), encoding="utf-8")
    except OSError as e:
        raise UserError(f"--page {page}: {e.strerror}") from e
    except ValueError as e:
        raise UserError(f"--page {page}: {e}") from e


def _end(number: int, _frame: object) -> None:
    """As Ctrl-C does: what is being run ends with this command."""
    raise SystemExit(128 + number)


@dataclass
class _Work:
    corpus: Path
    out: Path
    results: Results
    references: References
    entries: Mapping[str, Entry]
    left_out: dict[str, str]
    console: Console

    def run(self, cells: list[Cell]) -> None:
        commit = provenance.commit(self.corpus)
        for number, cell in enumerate(cells, 1):
            if self.results.of(cell) is not None or cell.entry in self.left_out:
                continue
            entry = self.entries[cell.entry]
            try:
                reference = self.references.of(entry)
            except UserError as e:
                self.left_out[entry.name] = str(e)
                self.console.print(narrate.line(str(e), "red"))
                continue
            result = self._run(entry, cell, reference, commit)
            self.results.add(result)
            style = report.STYLES[result.outcome]
            text = f"{number}/{len(cells)} {cell.entry} {cell.fault}: {result.outcome}, {result.reason}"
            self.console.print(narrate.line(text, style))

    def _run(self, entry: Entry, cell: Cell, reference: Path, commit: str) -> Result:
        began_s = time.monotonic()
        with run_cell.new_folder() as name:
            folder = Path(name) / "c"
            verdict = classify(run_cell.run_struck(entry, cell, self.corpus, reference, folder))
            kept = self.out / "cells" / cell.name
            shutil.rmtree(kept, ignore_errors=True)
            if verdict.outcome != IDENTICAL:
                kept.mkdir(parents=True)
                for file in KEPT_FILES:
                    if (folder / file).exists():
                        shutil.copy(folder / file, kept / file)
        # The same reason in two runs is the same text.
        reason = verdict.reason.replace(str(folder), "RUN").replace(str(self.corpus), "CORPUS")
        wall_s = round(time.monotonic() - began_s, 2)
        return Result(cell, verdict.outcome, reason, wall_s, commit, verdict.steps_redone)


def _write(
    out: Path, results: list[Result], order: list[str], about: dict[str, Any], left_out: Mapping[str, str]
) -> None:
    console = make_console(sys.stdout)
    if not results:
        raise UserError(f"no cell was run: {'; '.join(f'{k}: {v}' for k, v in left_out.items()) or 'none fits'}")
    for part in report.as_text(results, order, left_out):
        console.print(part)
    score = report.as_json(results, about, left_out)
    (out / "relay-score.json").write_text(json.dumps(score, indent=1) + "\n", encoding="utf-8")
    (out / "relay-score.md").write_text(report.as_markdown(results, order, about), encoding="utf-8")
    try:
        plot.draw(results, order, out / "relay-score.png")
    except UserError as e:
        make_console(sys.stderr).print(narrate.line(str(e), "yellow"))
