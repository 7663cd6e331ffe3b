"""Strikes a script with faults, and says for each what became of it."""

from __future__ import annotations

import dataclasses
import random
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from torchrelay.cli.drill import promise, records
from torchrelay.cli.drill.program import DrilledProgram
from torchrelay.cli.drill.promise import Outcome
from torchrelay.cli.drill.runs import DrillRun, run_relay
from torchrelay.cli.drill.undisturbed import Undisturbed
from torchrelay.cli.struck_runs.cells import FIRST, HEAD, JOINER, LAST, Cell, all_cells
from torchrelay.cli.struck_runs.classify import Ran, classify
from torchrelay.cli.struck_runs.together import in_runs, speaks_for_each, stopped_at
from torchrelay.protocol.errors import UserError
from torchrelay.protocol.options.faults import INJECT_PHASES

LEAST_STEPS = 8
TOGETHER = 4
"""How many faults a run has at most: one that goes wrong spoils those behind it."""
KINDS = ("kill", "stop", "planned", JOINER)
NOT_RUN = "not-run"
"""What `how` of a cell says for which no run was needed."""
_TERMINAL_CODES = re.compile(r"\x1b\[[0-9;]*m")
_TURNS = ("kill", "stop", "kill", JOINER, "kill", "planned")
"""Of twelve faults half are a rank's death, the most common one, in all phases of a step."""


@dataclass(frozen=True)
class DrillTarget:
    """What cells depend on, as `struck_runs.cells.Struck` has it."""

    name: str
    ranks: int
    steps: int
    epoch_step: int = 0
    phases: tuple[str, ...] = ()
    places: tuple[str, ...] = ()
    buddy_every: int = 0


@dataclass(frozen=True)
class StruckCell:
    """A cell, what became of it, and how many cells its run had."""

    cell: Cell
    outcome: Outcome
    wall_s: float
    together: int = 1


def cells(
    program: DrilledProgram,
    found: Undisturbed,
    count: int,
    seed: int,
    kinds: Sequence[str] = (),
    phases: Sequence[str] = (),
) -> list[Cell]:
    """Choose `count` faults for the script: each kind and phase once before any comes twice. Raises UserError."""
    steps = found.steps if _never_protected(found) else found.boundaries
    if steps < LEAST_STEPS:
        raise UserError(
            f"{program.name} makes {max(steps, 0)} steps: a drill needs {LEAST_STEPS} at the least, so that there is "
            "something to compare before and after each fault"
        )
    own = (*INJECT_PHASES, FIRST, HEAD, *(() if found.ended_early else (LAST,)))
    target = DrillTarget(program.name, program.ranks, steps, phases=own)
    return choose(all_cells([target], seed, phases, kinds or KINDS, ()), count, seed)


def _never_protected(found: Undisturbed) -> str:
    """Return why no step was ever protected, so that no fault can strike; empty if a step was protected."""
    summary = found.summary
    if summary.boundary > 0:
        return ""
    return promise.unprotected(summary) or "torchrelay has seen no step"


def choose(every: Sequence[Cell], count: int, seed: int) -> list[Cell]:
    """Choose `count` cells. Kinds take turns, and within a kind its phases; ranks are drawn."""
    chance = random.Random(seed)
    by_kind: dict[str, list[Cell]] = {}
    for kind in dict.fromkeys(cell.kind for cell in every):
        of_kind = [cell for cell in every if cell.kind == kind]
        chance.shuffle(of_kind)
        by_kind[kind] = _phases_first(of_kind)
    turns = [kind for kind in _TURNS if kind in by_kind] + [kind for kind in by_kind if kind not in _TURNS]
    chosen: list[Cell] = []
    while len(chosen) < count and any(by_kind.values()):
        for kind in turns:
            if by_kind[kind] and len(chosen) < count:
                chosen.append(by_kind[kind].pop(0))
    return chosen


def _phases_first(of_kind: Sequence[Cell]) -> list[Cell]:
    """Sort cells so that one of each phase comes first, then the next one of each."""
    seen: dict[str, int] = {}
    turns = []
    for cell in of_kind:
        turns.append((seen.get(cell.phase, 0), cell))
        seen[cell.phase] = seen.get(cell.phase, 0) + 1
    return [cell for _, cell in sorted(turns, key=lambda turn: turn[0])]


def strike(
    program: DrilledProgram,
    found: Undisturbed,
    wanted: Sequence[Cell],
    folder: Path,
    together: int = TOGETHER,
    keep: Callable[[DrillRun, Cell], None] = lambda run, cell: None,
) -> Iterator[StruckCell]:
    """Run the cells, several in a run if they can share it, and yield results as they come.

    Each run has a new folder below `folder`. `keep(run, cell)` is called for each that is not identical, before its folder goes.
    """
    refused = _never_protected(found)
    if refused:
        yield from (StruckCell(cell, Outcome(promise.REFUSED, refused, NOT_RUN), 0.0) for cell in wanted)
        return
    for number, of_run in enumerate(in_runs(wanted, together)):
        results = _run(program, found, of_run, folder / f"s{number}", keep)
        if len(results) == len(of_run):
            yield from results
            continue
        # The run does not speak for each of them.
        for place, cell in enumerate(of_run):
            (alone,) = _run(program, found, [cell], folder / f"s{number}-{place}", keep)
            yield worse_of(alone, *(together for together in results if together.cell == cell))


def worse_of(alone: StruckCell, *together: StruckCell) -> StruckCell:
    """Return the worse result of a fault, alone or together with others: a promise broken together counts as broken."""
    broken = [struck for struck in together if struck.outcome.outcome in (promise.FALSE_PROMISE, promise.WRONG)]
    return max((alone, *broken), key=lambda struck: promise.OUTCOMES.index(struck.outcome.outcome))


def _run(
    program: DrilledProgram,
    found: Undisturbed,
    of_run: Sequence[Cell],
    folder: Path,
    keep: Callable[[DrillRun, Cell], None],
) -> list[StruckCell]:
    """Return what became of each fault. If the run does not speak for all, return only the fault that it did not get past."""
    faults = sum(len(cell.faults) for cell in of_run)
    together = len(of_run)
    run = run_relay(program, folder, found.reference, of_run, faults + 1, found.limit_s(faults))
    ran = as_ran(found, run, of_run)
    verdicts = speaks_for_each(of_run, ran) if len(of_run) > 1 else [classify(ran)]
    if verdicts is None:
        of_run = [stopped_at(of_run, ran)]
        verdicts = [classify(ran)]
    results = [
        StruckCell(cell, _in_place(promise.outcome(cell, ran, verdict), run, program), run.wall_s, together)
        for cell, verdict in zip(of_run, verdicts, strict=True)
    ]
    for result in results:
        if result.outcome.outcome != promise.IDENTICAL:
            keep(run, result.cell)
    return results


def _in_place(outcome: Outcome, run: DrillRun, program: DrilledProgram) -> Outcome:
    """Replace paths in the copy by the user's own paths, and join messages of several lines into one."""
    reason = outcome.reason.replace(str(run.folder / "work"), str(program.folder))
    return dataclasses.replace(outcome, reason=" ".join(_TERMINAL_CODES.sub("", reason).split()))


def as_ran(found: Undisturbed, run: DrillRun, of_run: Sequence[Cell]) -> Ran:
    """Return the run as the relay score's classification takes it.

    A run that had computed something else is given as one that ended as if all were well.
    """
    assert run.log is not None
    injected = {fault for cell in of_run for fault in cell.faults} <= set(run.log.summary.faults_injected)
    reference = found.reference
    wrong = list(run.diverged) or records.wrong_before_it_ended(reference.records, run.records, reference.judged)
    code, different = (0, wrong) if wrong else (run.exit_code, [])
    if not wrong and run.exit_code in (0, 76):
        different = records.differences(reference.records, run.records, reference.judged)
    return Ran(code, run.log.summary, tuple(run.log.occurrences), tuple(different), injected)
