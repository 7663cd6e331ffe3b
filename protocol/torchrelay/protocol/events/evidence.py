"""What is seen of faults, and what follows from it."""

from __future__ import annotations

from torchrelay.protocol.messages.message import message


@message(frozen=True)
class FaultFired:
    """A fault of --inject is about to strike."""

    fault: str
    rank: int
    step: int


@message(frozen=True)
class Suspected:
    """A rank seems to hang. `evidence`: what every rank was doing, in words; `stack`: where its training thread was, innermost
    call first, empty if that could not be read.
    """

    rank: int
    reason: str
    evidence: str
    stack: tuple[str, ...] = ()


@message(frozen=True)
class HealthVerdict:
    """What evidence against a device, a node or the program means.

    `action`: ignore, watch, migrate, replace or stop; `rule`: the row of the policy; `subject`: the device, worker or node.
    `outcome`: done, told (nothing was to be done), observed (the policy only observes) or refused (`reason` says why).
    `quarantine`: no, device or node.
    """

    action: str
    rule: str
    node: str
    subject: str
    ranks: tuple[int, ...]
    outcome: str
    quarantine: str
    reason: str


@message(frozen=True)
class QuarantineCleared:
    """A device or a node may be used again. `by`: who has cleared it; empty if its reason is over."""

    subject: str
    reason: str
    by: str = ""
