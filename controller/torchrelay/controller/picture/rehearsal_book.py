"""What rehearsals of ranks have shown."""

from __future__ import annotations

from dataclasses import dataclass, field

from torchrelay.controller.decide.replacement.rehearse import Past
from torchrelay.protocol.messages import Rehearsed


@dataclass
class RehearsalBook:
    """By rank: the newest result that told anything, and the past as `decide.replacement.rehearse` wants it."""

    judged: dict[int, Rehearsed] = field(default_factory=dict)
    past: dict[int, Past] = field(default_factory=dict)
    open: str = ""
    """Why the latest one was broken off, as long as none has told anything since."""
    barred: str = ""
    """Why one that is due cannot be made."""
