"""What torchrelay had promised when a fault struck, and whether it was kept. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from torchrelay.cli.display.summary import RunSummary, fold
from torchrelay.cli.struck_runs import classify
from torchrelay.cli.struck_runs.cells import Cell
from torchrelay.cli.struck_runs.classify import CellVerdict, Ran
from torchrelay.protocol import events
from torchrelay.protocol.names import ALONE, BARS, BARS_LATER, BEHIND_UPDATE, PART_OF_STEP
from torchrelay.protocol.words.phases import COMMITTED

IDENTICAL = "identical"
OTHERWISE = "otherwise"
REFUSED = "refused"
NOT_STRUCK = "not-struck"
FALSE_PROMISE = "false-promise"
WRONG = "wrong"
OUTCOMES = (IDENTICAL, OTHERWISE, REFUSED, NOT_STRUCK, FALSE_PROMISE, WRONG)
"""From best to worst. `otherwise`: the same numbers, after more than the step in flight was done again."""

_BEFORE_UPDATE = ("forward", "backward")
"""Phases in which a loss is in front of the update for certain."""


@dataclass(frozen=True)
class Outcome:
    """What became of a cell. `outcome`: one of OUTCOMES. `reason`: in words. `how`: as classify has it."""

    outcome: str
    reason: str
    how: str
    steps_redone: int = 0


def outcome(cell: Cell, ran: Ran, verdict: CellVerdict) -> Outcome:
    """Return what became of a cell, by what was promised before it struck."""
    if verdict.outcome == classify.WRONG:
        return Outcome(WRONG, verdict.reason, verdict.outcome)
    if verdict.outcome == classify.IDENTICAL:
        return Outcome(IDENTICAL, verdict.reason, verdict.outcome, verdict.steps_redone)
    if verdict.outcome == classify.REDONE:
        return Outcome(OTHERWISE, verdict.reason, verdict.outcome, verdict.steps_redone)
    before = promised(ran.occurrences)
    if verdict.outcome == classify.NOT_INJECTED:
        # An unprotected rank is struck by nothing, and that was said. A gap says nothing of a fault that never came.
        announced = unprotected(before)
        return Outcome(REFUSED if announced else NOT_STRUCK, announced or verdict.reason, verdict.outcome)
    announced = refusal(cell, before)
    if announced and not _was_replaced(ran.occurrences):
        return Outcome(REFUSED, announced, verdict.outcome)
    return Outcome(FALSE_PROMISE, verdict.reason, verdict.outcome)


def promised(occurrences: Sequence[events.Occurrence]) -> RunSummary:
    """Return what was known of the job before the last fault struck; if none struck, before the job's end."""
    last = max((i for i, o in enumerate(occurrences) if isinstance(o, events.FaultFired)), default=len(occurrences))
    summary = RunSummary()
    for occurrence in occurrences[:last]:
        summary = fold(summary, occurrence, 0.0)
    return summary


def _was_replaced(occurrences: Sequence[events.Occurrence]) -> bool:
    """Return whether the rank that the last fault struck was taken over. What goes wrong after that was not announced."""
    last = max((i for i, o in enumerate(occurrences) if isinstance(o, events.FaultFired)), default=len(occurrences))
    return any(isinstance(o, events.MigrationFinished) and o.outcome == COMMITTED for o in occurrences[last:])


def refusal(cell: Cell, summary: RunSummary) -> str:
    """Return why this cell would not be recovered, if torchrelay has said so; empty if it has not."""
    reason = unprotected(summary)
    coverage = summary.coverage
    if reason or coverage is None:
        return reason
    bars = {BARS, BARS_LATER, PART_OF_STEP} | (set() if cell.kind == "planned" else {ALONE})
    if cell.phase not in _BEFORE_UPDATE:
        bars.add(BEHIND_UPDATE)
    gap = next((g for g in coverage.gaps if g.effect in bars and (not g.ranks or cell.rank in g.ranks)), None)
    if gap is None:
        return ""
    place = f" ({gap.file}:{gap.line})" if gap.file else ""
    return f"{gap.text}{place}"


def unprotected(summary: RunSummary) -> str:
    """Return why no rank can be replaced, if torchrelay has said so; empty if it has promised that some can."""
    if summary.protection.promises:
        return ""
    return f"{summary.protection.words}: {summary.protection_reason or 'protection was never on'}"
