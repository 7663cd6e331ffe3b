"""How far a job is protected, and what was done to know it."""

from __future__ import annotations

from typing import Any

from torchrelay.protocol.messages.message import message


@message(frozen=True)
class Protection:
    """How far the job is protected from now on: a `level.Level`, and what an operator has to know of it.

    `cause`: a `causes.ProtectionCause`.
    """

    level: str
    reason: str
    cause: str = ""


@message(frozen=True)
class ReportMade:
    """The protection report of one rank: where its training loop is, what is kept, what cannot be."""

    rank: int
    file: str
    line: int
    device_state_bytes: int
    journal_bytes: int
    tensors: int
    unprotected: tuple[str, ...]
    notes: tuple[str, ...]
    gaps: tuple[dict[str, Any], ...] = ()


@message(frozen=True)
class CoverageKnown:
    """The protection report of the whole job, when it is known and again when its level or its gaps change.

    `coverage`: the fields of messages.Coverage.
    """

    coverage: dict[str, Any]


@message(frozen=True)
class RehearsalStarted:
    """A child process of `spare` goes the way of a joiner that takes over `rank`, up to `boundary`. Training goes on.

    `spare` may be a process that was started for this.
    """

    rank: int
    boundary: int
    spare: str


@message(frozen=True)
class RehearsalFinished:
    """`outcome`: one of names.REHEARSAL_OUTCOMES. `reason`: why it is not `same`; `gaps`: each with text, file and line."""

    rank: int
    world_size: int
    boundary: int
    spare: str
    outcome: str
    reason: str
    gaps: tuple[dict[str, Any], ...]
    took_s: float


@message(frozen=True)
class RanksHeld:
    """`torchrelay check`: every rank stands still, having done `steps`, or the job needs no more steps to be judged."""

    steps: int
