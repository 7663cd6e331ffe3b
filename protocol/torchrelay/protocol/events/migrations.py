"""Migrations: each from its beginning to its end, what they save, and moves that are not made."""

from __future__ import annotations

from dataclasses import field

from torchrelay.protocol.messages.message import message


@message(frozen=True)
class MigrationStarted:
    """`kind`: one of phases.KINDS; in a resume and a save `rank` is -1: all of them. `cause`: a `causes.MigrationCause`.

    `by`: who asked for it: the local user, or the API's; empty where nobody did.
    """

    migration: str
    kind: str
    rank: int
    reason: str
    generation: int
    cause: str = ""
    by: str = ""


@message(frozen=True)
class PhaseChanged:
    """`phase`: a `phases.Phase`, which begins; `before_s`: how long the one before it took."""

    migration: str
    phase: str
    before_s: float


@message(frozen=True)
class MigrationProgressed:
    """About once a second while a phase reads or writes tensors; the fields are those of messages.MigrationProgress."""

    migration: str
    phase: str
    done_bytes: int
    total_bytes: int
    elapsed_s: float
    bytes_per_s: float
    left_s: float


@message(frozen=True)
class Decision:
    """A decision with its reason. `migration` is empty where it belongs to none."""

    migration: str
    text: str


@message(frozen=True)
class MigrationFinished:
    """`outcome`: committed, abandoned, checkpoint (the job ends with one), saved (it goes on), or cleared (a suspicion that did
    not hold).

    `downtime_s` has a number for each of phases.DOWNTIME_ROWS: how long training stood still for it. `beside_s`: what a
    planned migration prepared while training went on. `ranks`, `spares`: all that moved; `rank`, `spare`: the first.
    """

    migration: str
    kind: str
    outcome: str
    rank: int
    spare: str
    ranks: tuple[int, ...]
    spares: tuple[str, ...]
    steps_redone: int
    downtime_s: dict[str, float]
    beside_s: float
    transferred_bytes: int
    generation: int
    reason: str
    cause: str = ""


@message(frozen=True)
class MoveNotMade:
    """A planned migration that was asked for did not take place. `migration` is empty if it never began.

    `asked`: the words of whoever asked; `reason`: why nothing came of it.
    """

    migration: str
    rank: int
    asked: str
    reason: str


@message(frozen=True)
class RankSpread:
    """A rank was moved so that the loss of one machine does not end the job: the `moves`th one under this controller."""

    rank: int
    node: str
    moves: int


@message(frozen=True)
class CheckpointSaved:
    """A checkpoint is complete: a just-in-time one, or one that was asked for."""

    directory: str
    boundary: int
    resume_command: str
    resume_commands: dict[str, str] = field(default_factory=dict)
    """Of each machine, where there are several."""


@message(frozen=True)
class IncidentKept:
    """A migration failed that the report had promised. `directory`: what is needed to find the cause; empty where none is kept.

    `level`, `promised`: what was said when it began; `reason`: why it failed.
    """

    migration: str
    directory: str
    level: str
    promised: str
    reason: str
