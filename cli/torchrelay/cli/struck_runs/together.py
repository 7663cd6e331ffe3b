"""Several cells in one run: which ones may share it, and when such a run speaks for each of them. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from torchrelay.cli.struck_runs.cells import PARTITION, RUNGS, Cell
from torchrelay.cli.struck_runs.classify import IDENTICAL, MAXIMUM_STEPS_REDONE, CellVerdict, Ran, told_of

APART_STEPS = 2
"""A loss may take the step in flight with it: the next one strikes after that."""


def in_runs(cells: Sequence[Cell], most: int) -> list[list[Cell]]:
    """Group the cells into runs of `most` and fewer, each in the order in which its cells strike. Entries stay in their order.

    A planned move waits for its spare and stops some steps later, and a place of the program's own comes at an unknown step:
    these have a run to themselves. So have those that need options of their own.
    """
    if most < 2:
        return [[cell] for cell in cells]
    by_entry: dict[str, list[Cell]] = {}
    for cell in cells:
        by_entry.setdefault(cell.entry, []).append(cell)
    return [run for of_entry in by_entry.values() for run in _runs_of_one(of_entry, most)]


def _runs_of_one(cells: list[Cell], most: int) -> list[list[Cell]]:
    """Put the cells by their steps, each into the first run that has room. Apart from `most`, no grouping needs fewer runs."""
    runs: list[list[Cell]] = []
    alone = [c for c in cells if _is_alone(c)]
    for cell in sorted((c for c in cells if not _is_alone(c)), key=lambda c: c.step):
        fits = (run for run in runs if len(run) < most and cell.step - run[-1].step >= APART_STEPS)
        if (run := next(fits, None)) is None:
            runs.append([cell])
        else:
            run.append(cell)
    return [*runs, *([c] for c in alone)]


def _is_alone(cell: Cell) -> bool:
    return cell.kind == "planned" or cell.kind in RUNGS or cell.in_place


def stopped_at(cells: Sequence[Cell], ran: Ran) -> Cell:
    """Return the first cell that no migration was committed for, or the last one."""
    return cells[min(len(ran.summary.committed), len(cells) - 1)]


def speaks_for_each(cells: Sequence[Cell], ran: Ran) -> list[CellVerdict] | None:
    """Return one verdict for each cell, if all that each asks for was seen, one after the other. Otherwise None: run each alone."""
    committed = ran.summary.committed
    if ran.exit_code != 0 or ran.differences or len(committed) != len(cells):
        return None
    if sorted(ran.summary.faults_injected) != sorted(f for c in cells for f in c.faults):
        return None
    verdicts = []
    for cell, migration in zip(cells, committed):
        # Either of two ranks that do not reach each other may be replaced.
        if (
            cell.rank not in migration.ranks and cell.kind != PARTITION
        ) or migration.steps_redone > MAXIMUM_STEPS_REDONE.get(migration.kind, 1):
            return None
        more = f"; {len(cells)} cells in one run"
        verdicts.append(CellVerdict(IDENTICAL, told_of(migration) + more, migration.steps_redone))
    return verdicts
