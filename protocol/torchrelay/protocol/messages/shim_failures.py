"""What a training process says where it cannot go on, or cannot go on with the others, through no exception of its script."""

from __future__ import annotations

from torchrelay.protocol.messages.message import message


@message(frozen=True)
class Unfit:
    """This process cannot go on as its rank, for the `reason`, and ends itself: another one has to take over."""

    reason: str
    by_script: bool = False
    """Whether what the script does may be the cause, so that another process would meet it, too."""


@message(frozen=True)
class CommunicationFailed:
    """A communication of this rank has failed, `age_s` ago, and of a lost rank it has not heard since."""

    reason: str
    age_s: float
