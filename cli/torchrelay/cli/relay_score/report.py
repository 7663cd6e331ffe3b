"""The score, and the matrix of entries and cells, as people and as programs read it. Pure."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from torchrelay.cli.relay_score.results import FellShort, Result
from torchrelay.cli.struck_runs.cells import KINDS, PHASES
from torchrelay.cli.struck_runs.classify import CLASSES, IDENTICAL, REDONE

BEGIN = "<!-- results begin -->"
END = "<!-- results end -->"
"""What is between them in a page is replaced."""

MARKS = {
    "identical": "●",
    "redone": "◑",
    "fallback": "◐",
    "no-migration": "○",
    "not-injected": "·",
    "lost": "x",
    "wrong": "W",
}
STYLES = {
    "identical": "green",
    "redone": "yellow",
    "fallback": "dark_orange",
    "no-migration": "cyan",
    "not-injected": "dim",
    "lost": "red",
    "wrong": "bold white on red",
}


def column_names(results: Iterable[Result]) -> list[tuple[str, str]]:
    """Return the kinds and phases that occur, in the order in which they are declared."""
    present = {(r.cell.kind, r.cell.phase) for r in results}
    return [(k, p) for k in KINDS for p in PHASES if (k, p) in present]


def row_names(results: Iterable[Result], order: Sequence[str]) -> list[str]:
    """Return the entries that occur, in the order of the manifest."""
    present = {r.cell.entry for r in results}
    return [name for name in order if name in present]


def worst(outcomes: Iterable[str]) -> str:
    return max(outcomes, key=CLASSES.index)


def score(results: Sequence[Result]) -> float:
    """Return the share of the cells that are identical; 0 without cells."""
    return sum(r.outcome == IDENTICAL for r in results) / len(results) if results else 0.0


def as_json(
    results: Sequence[Result], about: Mapping[str, Any], left_out: Mapping[str, str], short: Sequence[FellShort] = ()
) -> dict[str, Any]:
    """Return the object of relay-score.json, documented in docs/relay-score.md. `left_out`: entries with the reason."""
    counts = Counter(r.outcome for r in results)
    return {
        **about,
        "score": round(score(results), 4),
        "cells": len(results),
        "outcomes": {name: counts[name] for name in CLASSES},
        "left_out": dict(left_out),
        "fell_short": [dataclasses.asdict(s) for s in short],
        "results": [dataclasses.asdict(r) for r in results],
    }


def as_text(
    results: Sequence[Result], order: Sequence[str], left_out: Mapping[str, str], where: str
) -> list[RenderableType]:
    """Return a matrix for each kind, the reasons of cells that are not identical, entries that were not run, and the score."""
    kinds = dict.fromkeys(kind for kind, _ in column_names(results))
    parts: list[RenderableType] = []
    for kind in kinds:
        parts += [_matrix(results, order, kind), Text("")]
    parts.append(Text(_legend(results)))
    bad = _worst_first(results, order)
    if bad:
        parts += [Text(""), *map(_reason, bad)]
    if left_out:
        parts += [Text("")] + [Text(f"not run: {name}: {reason}", "yellow") for name, reason in left_out.items()]
    parts += [Text(""), Text(f"{closing(results)}, {where}", "bold")]
    return parts


def as_markdown(
    results: Sequence[Result],
    order: Sequence[str],
    about: Mapping[str, Any],
    short: Sequence[FellShort] = (),
    left_out: Mapping[str, str] = MappingProxyType({}),
) -> str:
    """Return a table with the outcomes of each entry, the reason of each cell that is not identical, and what was not run."""
    machine = f"{about['where']}, {about['processors']} processors, torch {about['versions'].get('torch', 'unknown')}"
    lines = [f"**{closing(results)}** ({machine}, seed {about['seed']}; {_commits(results)})", ""]
    if any(r.together > 1 for r in results) or short:
        lines += [_shared(results, short), ""]
    lines += [f"| entry | {' | '.join(CLASSES)} | steps done again |", f"|---|{'---:|' * (len(CLASSES) + 1)}"]
    for name in row_names(results, order):
        own = [r for r in results if r.cell.entry == name]
        counts = Counter(r.outcome for r in own)
        lines.append(f"| {name} | {' | '.join(str(counts[c] or '') for c in CLASSES)} | {_again(own)} |")
    bad = _worst_first(results, order)
    if bad:
        lines += ["", "| cell | outcome | reason |", "|---|---|---|"]
        reasons = [r.reason.replace("|", "\\|") for r in bad]
        lines += [f"| {r.cell.entry}: {r.cell.fault} | {r.outcome} | {why} |" for r, why in zip(bad, reasons)]
    if left_out:
        lines += ["", "Not run:", "", *(f"- {name}: {reason}" for name, reason in left_out.items())]
    return "\n".join(lines) + "\n"


def _shared(results: Sequence[Result], short: Sequence[FellShort]) -> str:
    counts = Counter(s.outcome for s in short)
    text = f"{sum(r.together > 1 for r in results)} cells shared a run with others."
    if short:
        text += (
            f" {len(short)} shared runs fell short ({', '.join(f'{n} {name}' for name, n in counts.items())}); their"
        )
        text += " cells were run alone:\n\n" + "\n".join(
            f"- {s.entry}: {', '.join(s.faults)}: {s.outcome}: {s.reason}" for s in short
        )
    return text


def _commits(results: Sequence[Result]) -> str:
    counts = Counter(r.commit or "unknown" for r in results)
    if len(counts) == 1:
        return f"commit {next(iter(counts))}"
    return "commits " + ", ".join(f"{commit} ({count} cells)" for commit, count in counts.items())


def with_results(page: str, table: str) -> str:
    """Return the page with the table between its two marks. Raises ValueError if it lacks one, or has them in another order."""
    before, begin, rest = page.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise ValueError(f"it has no {BEGIN} and {END} to write between")
    return f"{before}{begin}\n{table}{end}{after}"


def _again(results: Sequence[Result]) -> str:
    """Return how many steps were done again in the cells that ended with the same numbers: `0, 1`, or `1 to 3`."""
    counts = sorted({r.steps_redone for r in results if r.outcome in (IDENTICAL, REDONE) and r.steps_redone >= 0})
    return f"{counts[0]} to {counts[-1]}" if len(counts) > 2 else ", ".join(map(str, counts))


def closing(results: Sequence[Result]) -> str:
    identical = sum(r.outcome == IDENTICAL for r in results)
    redone = sum(r.outcome == REDONE for r in results)
    more = f", {redone} more with the same numbers after going back further" if redone else ""
    return f"relay score {100 * score(results):.1f} %: {identical} of {len(results)} cells identical{more}"


def _matrix(results: Sequence[Result], order: Sequence[str], kind: str) -> Table:
    """Return the matrix, with one mark for each cell. Several ranks in one place stand side by side."""
    phases = [phase for k, phase in column_names(results) if k == kind]
    table = Table(box=None, pad_edge=False, padding=(0, 1, 0, 0), header_style="bold")
    for name in (kind, *phases):
        table.add_column(name, no_wrap=True)
    by_place: dict[tuple[str, str], list[Result]] = {}
    for r in results:
        if r.cell.kind == kind:
            by_place.setdefault((r.cell.entry, r.cell.phase), []).append(r)
    for name in row_names((r for r in results if r.cell.kind == kind), order):
        table.add_row(name, *(_marks(by_place.get((name, phase), [])) for phase in phases))
    return table


def _marks(results: Iterable[Result]) -> Text:
    text = Text()
    for r in sorted(results, key=lambda r: r.cell.rank):
        text.append(MARKS[r.outcome], STYLES[r.outcome])
    return text


def _legend(results: Sequence[Result]) -> str:
    counts = Counter(r.outcome for r in results)
    return "  ".join(f"{MARKS[name]} {name} {counts[name]}" for name in CLASSES)


def _worst_first(results: Sequence[Result], order: Sequence[str]) -> list[Result]:
    """Return all results that are not identical, worst first."""
    place = {name: i for i, name in enumerate(order)}
    bad = [r for r in results if r.outcome != IDENTICAL]
    return sorted(bad, key=lambda r: (-CLASSES.index(r.outcome), place.get(r.cell.entry, len(place))))


def _reason(result: Result) -> Text:
    return Text.assemble(
        (f"{result.outcome:<12}", STYLES[result.outcome]), f" {result.cell.entry}: {result.cell.fault}: {result.reason}"
    )
