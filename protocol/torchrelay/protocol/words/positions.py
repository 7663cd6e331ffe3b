"""What a rank is doing, where it can stand for a migration, and how it gets to where all meet: the one home of these words."""

from __future__ import annotations

import enum


class _Word(str, enum.Enum):
    """A word as it is on the wire, also within a text."""

    def __str__(self) -> str:
        return str(self.value)


class RankPhase(_Word):
    """What a rank is doing, in the order of a step. A progress record has the number of its place here."""

    SET_UP = "set-up"
    """Until the first boundary."""
    BODY = "body"
    GATE = "gate"
    UPDATE = "update"
    AFTER = "after"
    """The next batch is drawn here, too."""
    LEFT = "left"
    """Its training loop is over, and it waits for others before the next one, or before the script's end."""
    STANDING = "standing"
    """For a migration."""
    FINISHED = "finished"


PHASES = tuple(RankPhase)
NOT_TRAINING = (RankPhase.SET_UP, RankPhase.STANDING, RankPhase.FINISHED)
STANDS_STILL = (RankPhase.STANDING, RankPhase.FINISHED)


class StandingPosition(_Word):
    """Where a rank stands for a migration."""

    SET_UP = "set-up"
    HEAD = "head"
    """Of the training loop."""
    BODY = "body"
    """Before the gate."""
    GATE = "gate"
    BEHIND = "behind"
    """At a gate behind its loop, which was over with gradients left over: it can go on from there, and not back."""
    TORN = "torn"
    """In an update that others take part in, which it can neither finish nor do again."""
    AFTER = "after"
    """Past the gate, as the following ones are."""
    LEFT = "left"
    """It has left its loop at the head that followed."""
    SHARDED = "sharded"
    """A sharded model has communicated since."""
    ONCE = "once"
    """In what cannot be called again."""
    ASTRAY = "astray"
    """In a step of a loop that is not known to train yet, or after a loop that ended in the middle of a step."""
    FINISHED = "finished"
    """At the script's end."""


class SurvivorAction(_Word):
    """How a rank that lives gets to the boundary where all meet."""

    STAY = "stay"
    REWIND = "rewind"
    FORWARD = "forward"
    """It finishes the step that leads there."""
    LEAVE = "leave"
    """Of a planned move: it holds still; its process is ended once the rank lives elsewhere."""


class JoinerAction(_Word):
    """How a process that takes over a rank gets there."""

    ENTER = "enter"
    """With the state of that boundary."""
    SHADOW = "shadow"
    """From the boundary before, with what was recorded at the gate."""


RANK_STATES = ("starting", "running", "standing", "lost", "finished")
"""Of a rank, as `status` and metrics have it."""
