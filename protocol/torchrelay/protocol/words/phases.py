"""The phases of a migration, how long each may take, and the words for them."""

from __future__ import annotations

import enum
from dataclasses import dataclass


class Phase(str, enum.Enum):
    """The values are the words of events, `--json`, status and metrics; for what time is told by phase, see DOWNTIME_ROWS."""

    HEALTHY = "over"
    SUSPECTED = "detect"
    FENCING = "fence"
    PREPARING = "prepare"
    QUIESCING = "quiesce"
    TRANSFERRING = "transfer"
    REBUILDING = "rebuild"
    VERIFYING = "verify"
    COMMITTED = "first_step"
    CHECKPOINTING = "checkpoint"
    ABANDONED = "abandoned"


PLANNED = "planned"
UNPLANNED = "unplanned"
RESUME = "resume"
ROLLBACK = "rollback"
"""An unplanned one in which nobody holds what is lost: all ranks go back to their latest common copies."""
SAVE = "save"
"""No rank moves: all stand at a boundary ahead, save what they hold, and go on."""
KINDS = (PLANNED, UNPLANNED, RESUME, ROLLBACK, SAVE)
ALL_ENTER = (RESUME, ROLLBACK)
"""Of which no rank survives: every one is a joiner."""
UNFORCED = (PLANNED, SAVE)
"""Which begin while every rank lives: all stand at a boundary ahead, and whoever gives it up lets everybody go on as before."""

COMMITTED = "committed"
ABANDONED = "abandoned"
CHECKPOINT = "checkpoint"
SAVED = "saved"
"""A checkpoint that was asked for is complete, and training goes on."""
CLEARED = "cleared"
"""A suspicion that did not hold: nothing was touched, so nothing is reported as a migration."""
OUTCOMES = (COMMITTED, ABANDONED, CHECKPOINT, SAVED, CLEARED)
ACHIEVED = (COMMITTED, SAVED)
"""What was to be done was."""
ANEW = "anew"
"""What becomes of a migration whose controller has ended, if the next one has to begin it again."""

DOWNTIME_ROWS = tuple(phase.value for phase in Phase if phase not in (Phase.HEALTHY, Phase.ABANDONED))
"""Phases in which training may stand still, in the order in which an unplanned migration comes to them."""
MOVE_ROWS = tuple(sorted(DOWNTIME_ROWS, key=lambda row: (row == Phase.COMMITTED.value, row == Phase.FENCING.value)))
"""The same of a planned one: the process that leaves is ended only when the new generation has been verified."""


@dataclass(frozen=True)
class Deadlines:
    """Seconds that each phase may take. Planned quiescing gets the time of the steps that lie ahead on top.

    `spare_s`: within PREPARING, how long a lost rank waits for a spare that is on its way; `preparing_s` counts anew then.
    """

    suspected_s: float = 0.2
    fencing_s: float = 15.0
    preparing_s: float = 300.0
    spare_s: float = 300.0
    quiescing_s: float = 120.0
    transferring_s: float = 300.0
    rebuilding_s: float = 60.0
    verifying_s: float = 60.0
    committed_s: float = 600.0
    checkpointing_s: float = 600.0
    quiesce_tries: int = 5

    def of(self, phase: Phase) -> float | None:
        """Return the phase's deadline in seconds; None for a phase that may last for ever."""
        if phase in (Phase.HEALTHY, Phase.ABANDONED):
            return None
        seconds: float = getattr(self, f"{phase.name.lower()}_s")
        return seconds
