"""How far a job is protected, and the words for it: the same for the command line, events and Kubernetes."""

from __future__ import annotations

from enum import Enum


class Level(str, Enum):
    """From nothing known to everything; `controller/decide/protection/level.py` decides which holds."""

    PENDING = "pending"
    ARMED = "armed"
    UNPROTECTED = "unprotected"
    PARTLY = "partly"
    PROTECTED = "protected"

    @property
    def words(self) -> str:
        return _WORDS[self]

    @property
    def promises(self) -> bool:
        """Return whether somebody may rely on this level."""
        return self in (Level.PARTLY, Level.PROTECTED)

    @property
    def is_known(self) -> bool:
        """Return whether nothing is pending that could change the level by itself."""
        return self not in (Level.PENDING, Level.ARMED)


_WORDS = {
    Level.PENDING: "not known yet",
    Level.ARMED: "not protected yet",
    Level.UNPROTECTED: "not protected",
    Level.PARTLY: "partly protected",
    Level.PROTECTED: "protected",
}
