"""Which ways to go on a run has taken after losses, how often, and what they cost. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from torchrelay.cli.display.summary import MigrationSummary, RestartSummary, RunSummary
from torchrelay.cli.folders.folder import RungTaken
from torchrelay.protocol.kube.kube_names import NEXT_SPARE, RESPAWN
from torchrelay.protocol.words.phases import COMMITTED, PLANNED, RESUME, ROLLBACK, SAVE

COPIES = "copies"


def rungs_taken(summary: RunSummary) -> tuple[RungTaken, ...]:
    """Return the rungs that were taken, in the order in which they are tried.

    The seconds of a restart after which nothing trained are not known, and not counted.
    """
    found: dict[str, RungTaken] = {}
    for rung, steps, seconds in _taken(summary):
        before = found.get(rung, RungTaken(rung, 0, 0, 0.0))
        found[rung] = RungTaken(rung, before.times + 1, before.steps + steps, before.seconds + seconds)
    of_migrations = [found.pop(rung) for rung in (NEXT_SPARE, RESPAWN, COPIES) if rung in found]
    return (*of_migrations, *found.values())


def _taken(summary: RunSummary) -> Iterator[tuple[str, int, float]]:
    for m in summary.migrations:
        if rung := rung_of(m):
            yield rung, m.steps_redone, m.total_s
    for r in summary.restarts:
        yield r.rung, r.steps, r.down_s or 0.0


def rung_of(migration: MigrationSummary) -> str:
    """Return the migration's rung; empty if it replaced no lost rank.

    If a spare and a new process came in, it is the new process's rung: training waited for that.
    """
    if migration.outcome != COMMITTED or migration.kind in (PLANNED, RESUME, SAVE):
        return ""
    if migration.kind == ROLLBACK:
        return COPIES
    return RESPAWN if any(map(_started_for_a_rank, migration.spares)) else NEXT_SPARE


def _started_for_a_rank(worker: str) -> bool:
    """Return whether a process was started for a rank. Its name says so: `n0.r0`; a spare is called `n0.s0`."""
    return worker.rpartition(".")[2].startswith("r")


def in_words(taken: Iterable[RungTaken]) -> list[str]:
    """Return one line for each rung."""
    return [
        f"{r.rung}: {r.times} time{'s' * (r.times != 1)}, {r.steps} step{'s' * (r.steps != 1)} done again, {r.seconds:.1f} s"
        for r in taken
    ]


def restart_in_words(restart: RestartSummary) -> str:
    """Return one line of `torchrelay status`."""
    whence = f"at step {restart.boundary}" if restart.directory else "from the script's beginning"
    lost = f"{restart.steps} step{'s' * (restart.steps != 1)} lost"
    cost = lost + (f", {restart.down_s:.1f} s" if restart.down_s is not None else "")
    return f"{restart.restart} ({restart.rung}): {whence}, {cost}: {restart.reason}"
