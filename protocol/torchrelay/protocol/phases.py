"""The phases of a migration, how long each may take, and the row of the downtime table that its seconds go to."""

from __future__ import annotations

import enum
from dataclasses import dataclass


class Phase(str, enum.Enum):
    HEALTHY = "healthy"
    SUSPECTED = "suspected"
    FENCING = "fencing"
    PREPARING = "preparing"
    QUIESCING = "quiescing"
    TRANSFERRING = "transferring"
    REBUILDING = "rebuilding"
    VERIFYING = "verifying"
    COMMITTED = "committed"
    CHECKPOINTING = "checkpointing"
    ABANDONED = "abandoned"


PLANNED = "planned"
UNPLANNED = "unplanned"
RESUME = "resume"
ROLLBACK = "rollback"
"""An unplanned one in which nobody holds what is lost: all ranks go back to their latest common copies."""
KINDS = (PLANNED, UNPLANNED, RESUME, ROLLBACK)
ALL_ENTER = (RESUME, ROLLBACK)
"""Of which no rank survives: every one is a joiner."""

COMMITTED = "committed"
ABANDONED = "abandoned"
CHECKPOINT = "checkpoint"
CLEARED = "cleared"
"""A suspicion that did not hold: nothing was touched, so nothing is reported as a migration."""
OUTCOMES = (COMMITTED, ABANDONED, CHECKPOINT, CLEARED)
ANEW = "anew"
"""What becomes of a migration whose controller has ended, if the next one has to begin it again."""

DOWNTIME_ROWS = ("detect", "fence", "prepare", "quiesce", "transfer", "rebuild", "verify", "first_step")

ROW_OF_PHASE = {
    Phase.SUSPECTED: "detect",
    Phase.FENCING: "fence",
    Phase.PREPARING: "prepare",
    Phase.QUIESCING: "quiesce",
    Phase.TRANSFERRING: "transfer",
    Phase.REBUILDING: "rebuild",
    Phase.VERIFYING: "verify",
    Phase.COMMITTED: "first_step",
    Phase.CHECKPOINTING: "checkpoint",
}


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
        """None for phases that may last for ever."""
        if phase in (Phase.HEALTHY, Phase.ABANDONED):
            return None
        seconds: float = getattr(self, f"{phase.value}_s")
        return seconds
