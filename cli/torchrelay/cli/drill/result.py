"""What a drill has found: its JSON object, its exit code. Pure."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from torchrelay.cli.drill import promise
from torchrelay.cli.drill.advice import ScriptChange
from torchrelay.cli.drill.practice import StruckCell
from torchrelay.cli.drill.undisturbed import Cost, Undisturbed
from torchrelay.protocol.names import (
    EXIT_DRILL_FALSE_PROMISE,
    EXIT_DRILL_NOT_DETERMINISTIC,
    EXIT_DRILL_NOTHING_STRUCK,
    EXIT_DRILL_OTHERWISE,
    EXIT_DRILL_REFUSED,
    EXIT_DRILL_WRONG,
)

EXIT_CODES = {
    promise.WRONG: EXIT_DRILL_WRONG,
    promise.FALSE_PROMISE: EXIT_DRILL_FALSE_PROMISE,
    promise.REFUSED: EXIT_DRILL_REFUSED,
    promise.OTHERWISE: EXIT_DRILL_OTHERWISE,
}
"""By the worst outcome that occurs; 0 where all that struck were identical."""


@dataclass(frozen=True)
class Drill:
    """A drill and its results. `command`: as it was given. `changes`: what to change in the script."""

    command: tuple[str, ...]
    found: Undisturbed
    struck: Sequence[StruckCell] = ()
    changes: Sequence[ScriptChange] = ()
    versions: Mapping[str, str] = dataclasses.field(default_factory=dict)

    @property
    def counts(self) -> Counter[str]:
        return Counter(s.outcome.outcome for s in self.struck)

    @property
    def score(self) -> float:
        """Return the share of faults that left the same numbers in the same steps, of all that struck; 0 if none struck."""
        struck = len(self.struck) - self.counts[promise.NOT_STRUCK]
        return self.counts[promise.IDENTICAL] / struck if struck else 0.0

    @property
    def exit_code(self) -> int:
        if self.found.differences:
            return EXIT_DRILL_WRONG
        if not self.found.agreement.is_deterministic:
            return EXIT_DRILL_NOT_DETERMINISTIC
        counts = self.counts
        worst = next((EXIT_CODES[name] for name in EXIT_CODES if counts[name]), 0)
        return worst or (0 if counts[promise.IDENTICAL] else EXIT_DRILL_NOTHING_STRUCK)


@dataclass(frozen=True)
class StruckFault:
    """One cell. `faults`: as `--inject` takes them; `how`: the class of the relay score; `together`: how many cells its run had."""

    faults: tuple[str, ...]
    kind: str
    phase: str
    rank: int
    step: int
    outcome: str
    how: str
    reason: str
    steps_redone: int
    together: int
    wall_s: float


@dataclass(frozen=True)
class StepCost(Cost):
    """The cost of protection in a step. `step_ratio`: how many times as long a step takes with torchrelay."""

    step_ratio: float


@dataclass(frozen=True)
class DrillJson:
    """The object of `torchrelay drill --json`, documented in docs/drill.md. `cost`: None where too few steps were made to say."""

    command: tuple[str, ...]
    versions: Mapping[str, str]
    exit_code: int
    deterministic: bool
    judged: tuple[str, ...]
    differs_undisturbed: Mapping[str, str]
    reads_unwritten_memory: bool
    chosen_entropy: bool
    steps: int
    boundaries: int
    ended_early: bool
    with_torchrelay_undisturbed: tuple[str, ...]
    cost: StepCost | None
    score: float
    outcomes: Mapping[str, int]
    faults: tuple[StruckFault, ...]
    changes: tuple[ScriptChange, ...]


def as_json(drill: Drill) -> DrillJson:
    """Return what the drill has found, for programs."""
    found = drill.found
    cost = drill.found.cost
    return DrillJson(
        command=tuple(drill.command),
        versions=dict(drill.versions),
        exit_code=drill.exit_code,
        deterministic=found.agreement.is_deterministic,
        judged=tuple(found.agreement.judged),
        differs_undisturbed=dict(found.agreement.differs),
        reads_unwritten_memory=found.reads_unwritten,
        chosen_entropy=bool(found.reference.entropy),
        steps=found.steps,
        boundaries=found.boundaries,
        ended_early=found.ended_early,
        with_torchrelay_undisturbed=found.differences,
        cost=None if cost is None else StepCost(**dataclasses.asdict(cost), step_ratio=round(cost.ratio, 4)),
        score=round(drill.score, 4),
        outcomes={name: drill.counts[name] for name in promise.OUTCOMES},
        faults=tuple(map(_fault, drill.struck)),
        changes=tuple(drill.changes),
    )


def _fault(struck: StruckCell) -> StruckFault:
    cell = struck.cell
    outcome = struck.outcome
    return StruckFault(
        faults=tuple(cell.faults),
        kind=cell.kind,
        phase=cell.phase,
        rank=cell.rank,
        step=cell.step,
        outcome=outcome.outcome,
        how=outcome.how,
        reason=outcome.reason,
        steps_redone=outcome.steps_redone,
        together=struck.together,
        wall_s=round(struck.wall_s, 2),
    )
