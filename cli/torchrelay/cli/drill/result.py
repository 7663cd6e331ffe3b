"""What a drill has found: its JSON object, its exit code. Pure."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torchrelay.cli.drill import promise
from torchrelay.cli.drill.advice import ScriptChange
from torchrelay.cli.drill.practice import StruckCell
from torchrelay.cli.drill.undisturbed import Undisturbed
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
    """`command`: as it was given. `changes`: what to change in the script."""

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


def as_json(drill: Drill) -> dict[str, Any]:
    """Return the object of `torchrelay drill --json`, documented in docs/drill.md."""
    found, cost = drill.found, drill.found.cost
    return {
        "command": list(drill.command),
        "versions": dict(drill.versions),
        "exit_code": drill.exit_code,
        "deterministic": found.agreement.is_deterministic,
        "judged": list(found.agreement.judged),
        "differs_undisturbed": dict(found.agreement.differs),
        "reads_unwritten_memory": found.reads_unwritten,
        "chosen_entropy": bool(found.reference.entropy),
        "steps": found.steps,
        "boundaries": found.boundaries,
        "ended_early": found.ended_early,
        "with_torchrelay_undisturbed": list(found.differences),
        "cost": None if cost is None else {**dataclasses.asdict(cost), "step_ratio": round(cost.ratio, 4)},
        "score": round(drill.score, 4),
        "outcomes": {name: drill.counts[name] for name in promise.OUTCOMES},
        "faults": [_fault(struck) for struck in drill.struck],
        "changes": [dataclasses.asdict(change) for change in drill.changes],
    }


def _fault(struck: StruckCell) -> dict[str, Any]:
    cell, outcome = struck.cell, struck.outcome
    return {
        "faults": list(cell.faults),
        "kind": cell.kind,
        "phase": cell.phase,
        "rank": cell.rank,
        "step": cell.step,
        "outcome": outcome.outcome,
        "how": outcome.how,
        "reason": outcome.reason,
        "steps_redone": outcome.steps_redone,
        "together": struck.together,
        "wall_s": round(struck.wall_s, 2),
    }
