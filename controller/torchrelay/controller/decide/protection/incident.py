"""Was a migration that failed promised to work? Then it is an incident."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from torchrelay.protocol.messages import Coverage
from torchrelay.protocol.names import ALONE, BARS, BARS_LATER, BEHIND_UPDATE, NO_JOINER, PART_OF_STEP
from torchrelay.protocol.words.level import Level
from torchrelay.protocol.words.phases import CLEARED, COMMITTED, PLANNED, RESUME, SAVE


@dataclass(frozen=True)
class Failure:
    """How a migration ended. `lost`: the ranks that were to be replaced; `joins_failed`: whether some process could not become one.

    `spares`: that were ready when it began; `uncovered`: whether it lost a machine that nobody had copies of; `apart`: whether
    ranks did not hold the same any more that had done so before.
    """

    kind: str
    outcome: str
    lost: Collection[int]
    joins_failed: bool
    spares: int
    uncovered: bool
    apart: bool = False


def is_incident(promised: Coverage, world_size: int, failure: Failure) -> bool:
    """`promised`: the report that stood when it began."""
    if failure.outcome in (COMMITTED, CLEARED) or failure.kind in (RESUME, SAVE):
        return False
    if failure.apart:
        return True
    announced = {BARS, BARS_LATER, PART_OF_STEP, BEHIND_UPDATE, NO_JOINER} | (
        set() if failure.kind == PLANNED else {ALONE}
    )
    lost = set(failure.lost)
    told_before = any(gap.effect in announced and lost & set(gap.ranks) for gap in promised.gaps)
    if told_before or not Level(promised.level).promises:
        return False
    if failure.joins_failed:
        return True
    if failure.kind == PLANNED or failure.uncovered:
        return False  # a move is given up for reasons of the script's or the operator's, too
    return len(lost) <= failure.spares and len(lost) < world_size
