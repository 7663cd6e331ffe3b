"""What struck a job, and by which rung it went on each time: from its events. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

NOTHING = "goes on"
_SAME_S = 5.0
"""Several machines tell of the same within this time."""
_OF_ONE_MACHINE = ("time_s", "elapsed_s", "restart")
"""A machine that came back later has its own number for a restart."""


@dataclass(frozen=True)
class Strike:
    """`at_s`: by the wall clock, a moment before it."""

    kind: str
    target: int
    at_s: float
    boundary: int


@dataclass(frozen=True)
class Row:
    """What has become of the strikes of one kind. `steps`: done again. `down_s`: for which nobody trained."""

    kind: str
    count: int
    rungs: Counter[str]
    steps: int
    down_s: float


def merged(files: Iterable[Sequence[dict[str, Any]]]) -> list[dict[str, Any]]:
    """The events of all machines in their order; what several have told comes once."""
    known: dict[str, float] = {}
    found = []
    for event in sorted((e for file in files for e in file), key=lambda e: float(e["time_s"])):
        told = repr(sorted((k, str(v)) for k, v in event.items() if k not in _OF_ONE_MACHINE))
        if event["time_s"] - known.get(told, -_SAME_S) >= _SAME_S:
            found.append(event)
        known[told] = event["time_s"]
    return found


def rows(strikes: Sequence[Strike], events: Sequence[dict[str, Any]]) -> list[Row]:
    """One for each kind that struck. What comes before the next strike is taken for what became of this one."""
    by_kind: dict[str, Row] = {}
    ends = [s.at_s for s in strikes[1:]] + [float("inf")]
    for strike, end_s in zip(strikes, ends):
        after = [e for e in events if strike.at_s <= e["time_s"] < end_s]
        row = by_kind.setdefault(strike.kind, Row(strike.kind, 0, Counter(), 0, 0.0))
        row.rungs.update(rungs(after) or [NOTHING])
        by_kind[strike.kind] = Row(
            row.kind, row.count + 1, row.rungs, row.steps + steps_redone(after), row.down_s + down_s(after)
        )
    return [by_kind[kind] for kind in sorted(by_kind)]


def rungs(events: Sequence[dict[str, Any]]) -> list[str]:
    """How the job has gone on, in this order; empty if nothing had to be done."""
    found = []
    respawned = False
    for event in events:
        name = event["name"]
        respawned = respawned or name == "process_respawned"
        if name == "job_restarted":
            found.append(event["rung"])
            respawned = False
        elif name == "migration_finished" and event["outcome"] == "committed":
            if event["kind"] in ("planned", "rollback"):
                found.append({"planned": "move", "rollback": "copies"}[event["kind"]])
            elif event["kind"] == "unplanned":
                found.append("respawn" if respawned else "spare")
            respawned = respawned and event["kind"] != "unplanned"
        elif name == "migration_finished" and event["outcome"] == "cleared":
            found.append("cleared")
        elif name == "taken_over":
            found.append("next controller")
        elif name == "spare_dropped":
            found.append("spare dropped")
    return found


def steps_redone(events: Sequence[dict[str, Any]]) -> int:
    moved = sum(e["steps_redone"] for e in events if e["name"] == "migration_finished" and e["outcome"] == "committed")
    return moved + sum(e["steps"] for e in events if e["name"] == "job_restarted")


def down_s(events: Sequence[dict[str, Any]]) -> float:
    moved = (e for e in events if e["name"] == "migration_finished" and e["outcome"] == "committed")
    begun = (e["elapsed_s"] for e in events if e["name"] == "restart_done")
    return sum(sum(e["downtime_s"].values()) for e in moved) + sum(begun)


def table(found: Sequence[Row]) -> str:
    lines = [f"{'fault':<12}{'struck':>7}  {'steps again':>11}  {'down':>8}  what became of it"]
    for row in found:
        became = ", ".join(f"{name} {count}" for name, count in sorted(row.rungs.items()))
        lines.append(f"{row.kind:<12}{row.count:>7}  {row.steps:>11}  {row.down_s:>6.1f} s  {became}")
    total = sum(row.count for row in found), sum(row.steps for row in found), sum(row.down_s for row in found)
    lines.append(f"{'all':<12}{total[0]:>7}  {total[1]:>11}  {total[2]:>6.1f} s")
    return "\n".join(lines)
