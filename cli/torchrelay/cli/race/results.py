"""What became of each arm in each repetition, and what several repetitions say together. Pure but for reading an arm's files."""

from __future__ import annotations

import csv
import json
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from torchrelay.cli.race.arms import ArmSetting
from torchrelay.cli.race.figures import Figures, fold
from torchrelay.cli.race.heat import Heat


@dataclass(frozen=True)
class ArmResult:
    """One run of an arm. `ended`: empty if the script came to its end. `is_bitwise`: the weights of every rank are the baseline's.

    `is_bitwise` is None if that cannot be said. `phases_s`: of the downtime, if the arm tells them.
    """

    arm: str
    repetition: int
    wall_s: float
    ended: str
    figures: Figures | None
    struck: tuple[tuple[str, float, float], ...]
    """(fault in words, seconds since the first step when it was due, and when it struck)."""
    missed: int
    loss: str
    is_bitwise: bool | None
    phases_s: dict[str, float] = field(default_factory=dict)


def judge(arm: str, repetition: int, heat: Heat, setting: ArmSetting, weights: Sequence[str]) -> ArmResult:
    """Return the result of one run. `weights`: digests of the baseline by rank; empty for the baseline itself."""
    figures = fold(heat.logs, [s.unix_s for s in heat.struck])
    began_s = min((log.steps[0].unix_s for log in heat.logs if log.steps), default=0.0)
    own = [log.end for log in heat.logs]
    return ArmResult(
        arm,
        repetition,
        heat.wall_s,
        heat.ended,
        figures,
        tuple((s.fault.name, s.due_s, s.unix_s - began_s) for s in heat.struck),
        len(heat.missed),
        _last_loss(setting.out / "loss.csv"),
        own == list(weights) if weights and not heat.ended else None,
        _phases(setting.events),
    )


def _last_loss(path: Path) -> str:
    """Return the loss of the last step, as the demo's script writes it; empty for other scripts."""
    try:
        rows = list(csv.DictReader(path.read_text(encoding="utf-8").splitlines()))
    except FileNotFoundError:
        return ""
    return max(rows, key=lambda row: int(row["step"]))["mean_loss"] if rows else ""


def _phases(events: Path) -> dict[str, float]:
    try:
        lines = events.read_text(encoding="utf-8").splitlines()
    except FileNotFoundError:
        return {}
    sums: dict[str, float] = {}
    for event in map(json.loads, lines):
        if event["name"] == "migration_finished" and event["outcome"] == "committed":
            for phase, seconds in event["downtime_s"].items():
                sums[phase] = sums.get(phase, 0.0) + seconds
    return sums


@dataclass(frozen=True)
class Together:
    """One arm over its repetitions: medians. `ratios`: effective steps per minute, by that of the same repetition's baseline."""

    arm: str
    runs: tuple[ArmResult, ...]
    ratios: tuple[float, ...]

    @property
    def whole(self) -> list[tuple[ArmResult, Figures]]:
        """Return the runs that came to the script's end."""
        return [(r, r.figures) for r in self.runs if r.figures is not None and not r.ended]

    def middle(self, values: Iterable[float | None]) -> float | None:
        """Return the median; None if there are no values."""
        known = [value for value in values if value is not None]
        return statistics.median(known) if known else None


def together(results: Sequence[ArmResult], baseline: str) -> list[Together]:
    """Return each arm over its repetitions, in the order in which arms come first."""
    rates = {
        (r.arm, r.repetition): r.figures.effective_steps_per_min
        for r in results
        if r.figures is not None and not r.ended
    }
    found = []
    for arm in dict.fromkeys(r.arm for r in results):
        runs = tuple(r for r in results if r.arm == arm)
        pairs = [(rates.get((arm, r.repetition)), rates.get((baseline, r.repetition))) for r in runs]
        found.append(Together(arm, runs, tuple(a / b for a, b in pairs if a and b)))
    return found


def as_json(result: ArmResult) -> dict[str, Any]:
    """Return one run for JSON, with all that the table is made of."""
    f = result.figures
    return {
        "arm": result.arm,
        "repetition": result.repetition,
        "wall_s": round(result.wall_s, 3),
        "ended": result.ended,
        "faults": [{"fault": n, "due_s": round(due, 3), "struck_s": round(at, 3)} for n, due, at in result.struck],
        "faults_missed": result.missed,
        "final_loss": result.loss,
        "is_bitwise": result.is_bitwise,
        "phases_s": {name: round(s, 4) for name, s in result.phases_s.items()},
        "figures": None if f is None else _figures(f),
    }


def _figures(f: Figures) -> dict[str, Any]:
    return {
        "steps": f.steps,
        "training_s": round(f.training_s, 3),
        "step_s": round(f.step_s, 5),
        "effective_steps_per_min": round(f.effective_steps_per_min, 2),
        "steps_redone": f.steps_redone,
        "rank_steps_missed": f.rank_steps_missed,
        "downtime_s": round(f.downtime_s, 3),
        "costs": [{"stall_s": round(c.stall_s, 3), "redo_s": round(c.redo_s, 3)} for c in f.costs],
        "wasted_rank_s": round(f.wasted_rank_s, 3),
        "progress": [[round(at, 3), step] for at, step in f.progress],
    }
