"""`torchrelay bench relay-score`, from its options to its files."""

from __future__ import annotations

import json
import shutil
import signal
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.text import Text

from torchrelay.cli.display import narrate
from torchrelay.cli.display.teller import make_console
from torchrelay.cli.display.waiting import waiting
from torchrelay.cli.relay_score import entries as corpus_entries
from torchrelay.cli.relay_score import plot, provenance, report, run_cell
from torchrelay.cli.relay_score import where as wheres
from torchrelay.cli.relay_score.entries import CorpusEntry
from torchrelay.cli.relay_score.references import References
from torchrelay.cli.relay_score.results import FellShort, Result, Results
from torchrelay.cli.relay_score.where import ScoreBackend, Where
from torchrelay.cli.struck_runs.cells import PHASES, Cell, all_cells, spread
from torchrelay.cli.struck_runs.classify import IDENTICAL, WRONG, CellVerdict, classify
from torchrelay.cli.struck_runs.together import in_runs, speaks_for_each
from torchrelay.protocol.errors import UserError
from torchrelay.protocol.machine.owned_folder import owned_folder

KEPT_FILES = ("events.jsonl", "stderr", "stdout")
"""Of a cell that is not identical: what it takes to find out why."""


@dataclass(frozen=True)
class RelayScoreOptions:
    """The command line. `cells`: how many without `full`. `page`: a page of documentation with a place for the results.

    `together`: how many cells a run may have.
    """

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
    together: int = 1
    backend: ScoreBackend = ScoreBackend.GLOO


def relay_score(options: RelayScoreOptions) -> int:
    """Run cells and write the results. Return 0, or 1 if a run ended with wrong numbers. Raises UserError."""
    signal.signal(signal.SIGTERM, _end)
    where = wheres.look(options.backend)
    corpus = corpus_entries.find_corpus(options.corpus)
    everything = corpus_entries.load(corpus, PHASES)
    chosen = corpus_entries.select(everything, list(options.entries))
    left_out = {e.name: why for e in chosen if (why := e.why_not_run(where))}
    able = [e for e in chosen if e.name not in left_out]
    cells = all_cells(able, options.seed, options.phases, options.kinds, options.ranks)
    if not options.full:
        cells = spread(cells, options.cells, options.seed)
    options.out.mkdir(parents=True, exist_ok=True)
    versions = provenance.versions(p for e in everything for p in e.requires)
    results = Results(options.out / "results.jsonl", options.resume, where.in_words())
    references = References(options.out / "references", corpus, everything, versions, where)
    by_name = {e.name: e for e in able}
    work = _Work(corpus, options.out, where, results, references, by_name, left_out, make_console(sys.stderr))
    work.run([c for c in cells if results.of(c) is None], options.together)
    about = {
        "commit": provenance.commit(corpus),
        "versions": versions,
        "backend": where.backend.value,
        "device": where.device_type,
        "devices": list(where.devices),
        "where": where.in_words(),
        "processors": provenance.processors(),
        "seed": options.seed,
    }
    order = [e.name for e in everything]
    _write(options.out, results, order, about, left_out)
    if options.page is not None:
        _put_into(options.page, report.as_markdown(results.all, order, about, results.short, left_out))
    return 1 if WRONG in {*(r.outcome for r in results.all), *(s.outcome for s in results.short)} else 0


def _put_into(page: Path, table: str) -> None:
    """Write the table into the page. Raises UserError if the page has no place for it."""
    try:
        page.write_text(report.with_results(page.read_text(encoding="utf-8"), table), encoding="utf-8")
    except OSError as e:
        raise UserError(f"--page {page}: {e.strerror}") from e
    except ValueError as e:
        raise UserError(f"--page {page}: {e}") from e


def _end(number: int, _frame: object) -> None:
    """End like Ctrl-C does: what is being run ends with this command."""
    raise SystemExit(128 + number)


@dataclass
class _Work:
    corpus: Path
    out: Path
    where: Where
    results: Results
    references: References
    entries: Mapping[str, CorpusEntry]
    left_out: dict[str, str]
    console: Console

    def run(self, cells: list[Cell], together: int) -> None:
        with waiting(self.console, "cells", len(cells)) as are_done:
            self._run_all(cells, together, are_done)

    def _run_all(self, cells: list[Cell], together: int, are_done: Callable[[int], None]) -> None:
        commit = provenance.commit(self.corpus)
        done = 0
        for cells_of_run in in_runs(cells, together):
            entry = self.entries[cells_of_run[0].entry]
            reference = self._reference(entry)
            if reference is None:
                continue
            results = self._run(entry, cells_of_run, reference, commit)
            if results is None:
                results = [r for cell in cells_of_run for r in self._run(entry, [cell], reference, commit) or ()]
            for result in results:
                done += 1
                self._tell(result, f"{done}/{len(cells)}")
            are_done(done)

    def _tell(self, result: Result, number: str) -> None:
        self.results.add(result)
        text = f"{number} {result.cell.entry} {result.cell.fault}: {result.outcome}, {result.reason}"
        self.console.print(Text(text, report.STYLES[result.outcome]))

    def _reference(self, entry: CorpusEntry) -> Path | None:
        if entry.name in self.left_out:
            return None
        try:
            return self.references.of(entry)
        except UserError as e:
            self.left_out[entry.name] = str(e)
            self.console.print(narrate.line(str(e), "red"))
            return None

    def _run(self, entry: CorpusEntry, cells: list[Cell], reference: Path, commit: str) -> list[Result] | None:
        """Run the cells. Return None if several cells shared the run, and it does not speak for each of them."""
        began_s = time.monotonic()
        with owned_folder("score") as made:
            folder = made / "c"
            ran = run_cell.run_struck(entry, cells, self.corpus, reference, folder, self.where)
            verdicts = [classify(ran)] if len(cells) == 1 else speaks_for_each(cells, ran)
            if verdicts is None:
                self._fell_short(entry, cells, classify(ran), folder)
                return None
            shutil.rmtree(self.out / "cells" / cells[0].name, ignore_errors=True)
            if verdicts[0].outcome != IDENTICAL:
                self._keep(folder, cells[0].name)
        wall_s = round(time.monotonic() - began_s, 2)

        return [
            Result(
                cell,
                v.outcome,
                self._reason(v, folder),
                wall_s,
                commit,
                v.steps_redone,
                len(cells),
                self.where.in_words(),
            )
            for cell, v in zip(cells, verdicts)
        ]

    def _reason(self, verdict: CellVerdict, folder: Path) -> str:
        """Return the reason without names of folders, so that two runs with the same reason give the same text."""
        return verdict.reason.replace(str(folder), "RUN").replace(str(self.corpus), "CORPUS")

    def _fell_short(self, entry: CorpusEntry, cells: list[Cell], verdict: CellVerdict, folder: Path) -> None:
        """Write down a shared run that fell short. Its wrong numbers must not be forgotten if its cells are right one by one."""
        faults = [f for c in cells for f in c.faults]
        short = FellShort(entry.name, faults, verdict.outcome, self._reason(verdict, folder))
        self.results.fell_short(short)
        self._keep(folder, f"{entry.name}/together/{'-'.join(str(c.step) for c in cells)}")
        text = f"{entry.name}: {len(cells)} cells in one run: {short.outcome}, {short.reason}; each is run alone"
        self.console.print(Text(text, report.STYLES[short.outcome]))

    def _keep(self, folder: Path, name: str) -> None:
        kept = self.out / "cells" / name
        shutil.rmtree(kept, ignore_errors=True)
        kept.mkdir(parents=True)
        for file in KEPT_FILES:
            if (folder / file).exists():
                shutil.copy(folder / file, kept / file)


def _write(out: Path, found: Results, order: list[str], about: dict[str, Any], left_out: Mapping[str, str]) -> None:
    results = found.all
    console = make_console(sys.stdout)
    if not results:
        raise UserError(f"no cell was run: {'; '.join(f'{k}: {v}' for k, v in left_out.items()) or 'none fits'}")
    for part in report.as_text(results, order, left_out, about["where"]):
        console.print(part)
    score = report.as_json(results, about, left_out, found.short)
    (out / "relay-score.json").write_text(json.dumps(score, indent=1) + "\n", encoding="utf-8")
    (out / "relay-score.md").write_text(
        report.as_markdown(results, order, about, found.short, left_out), encoding="utf-8"
    )
    try:
        plot.draw(results, order, out / "relay-score.png")
    except UserError as e:
        make_console(sys.stderr).print(narrate.line(str(e), "yellow"))
