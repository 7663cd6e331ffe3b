"""How a collective of the script is done, by where its rank is."""

from __future__ import annotations

import enum


class CollectiveMode(str, enum.Enum):
    OFF = "off"
    """As without torchrelay: the rank is not protected, or the call is none of the training thread's own."""
    RECORD = "record"
    """With its peers, and its result is kept for whoever takes over the rank."""
    ANSWER = "answer"
    """In a joiner, without peers: it gets what the lost rank had got."""
    REPEAT = "repeat"
    """Behind the gate: where it is interrupted, it is done again, or gets what others had finished."""
