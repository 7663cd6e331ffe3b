"""What the time of a job was used for, by all controllers that have led it. Pure; a TrainingJob's status has it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from torchrelay.protocol.metrics.account import Account
from torchrelay.protocol.metrics.table import REDONE, USEFUL

USEFUL_SECONDS = "usefulSeconds"
REDONE_SECONDS = "redoneSeconds"


@dataclass(frozen=True)
class TimeUsed:
    """`useful_s`: in steps that were done for the first time; `redone_s`: in steps that were done again.

    What no controller has watched is in neither.
    """

    useful_s: float = 0.0
    redone_s: float = 0.0

    def plus(self, account: Account) -> TimeUsed:
        """With what this controller has heard of the job."""
        return TimeUsed(self.useful_s + account.seconds[USEFUL], self.redone_s + account.seconds[REDONE])

    def as_status(self) -> dict[str, float]:
        return {USEFUL_SECONDS: round(self.useful_s, 1), REDONE_SECONDS: round(self.redone_s, 1)}


NOT_WATCHED = TimeUsed()


def read_time_used(status: Mapping[str, Any]) -> TimeUsed:
    """Of a TrainingJob's status; nothing where it says nothing. Raises ValueError or TypeError for what is no number."""
    return TimeUsed(float(status.get(USEFUL_SECONDS, 0.0)), float(status.get(REDONE_SECONDS, 0.0)))
