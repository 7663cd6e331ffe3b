"""The objects that `--json` prints of what a command has asked a job for, with the words that events have for the same things."""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass
from typing import Any

ACCEPTED = "accepted"
REFUSED = "refused"
"""Outcomes of what is not waited for, and of what never began."""
NO_ANSWER = "no-answer"
READY = "ready"
NOT_READY = "not-ready"
FREE = "free"
NOT_FREE = "not-free"
DONE = "done"
CLEARED = "cleared"
CHECKING = "checking"
ENDED = "ended"
TOLD = "told"
RUNNING = "running"


@dataclass(frozen=True)
class MigrateJson:
    """`torchrelay migrate --json`. `outcome`: as in the event `migration_finished`; accepted (it is not waited for), refused, or
    no-answer (the job is over, or has lost its controller).

    `spare`: who has the rank now; empty if it has not moved.
    """

    run_id: str
    migration: str
    rank: int
    outcome: str
    reason: str
    spare: str
    steps_redone: int
    downtime_total_s: float


@dataclass(frozen=True)
class CheckpointJson:
    """`torchrelay checkpoint --json`. `outcome`: saved, abandoned, accepted (it is not waited for) or refused.

    Where nothing was saved, `directory` is empty and `boundary` -1.
    """

    run_id: str
    migration: str
    outcome: str
    reason: str
    directory: str
    boundary: int
    resume_command: str
    downtime_total_s: float


@dataclass(frozen=True)
class RanksLeft:
    """Ranks of one job (its run id, or NAMESPACE/NAME in a cluster) that are still there."""

    job: str
    ranks: tuple[int, ...]


@dataclass(frozen=True)
class DrainJson:
    """`drain --json`, on a machine and in a cluster. `outcome`: free, not-free (`left` are still there) or refused."""

    node: str
    outcome: str
    reason: str
    left: tuple[RanksLeft, ...] = ()


@dataclass(frozen=True)
class StopJson:
    """`stop --json`, on a machine and in a cluster. `outcome`: ended, told (its ranks have the signal), or running.

    `command`: what ends it, where this command does not.
    """

    job: str
    outcome: str
    reason: str = ""
    command: str = ""


@dataclass(frozen=True)
class QuarantineAddJson:
    """`torchrelay quarantine add --json`. `outcome`: done or refused. `moving`: ranks that go to spares; `staying`: that do not."""

    run_id: str
    subject: str
    outcome: str
    reason: str
    moving: tuple[int, ...]
    staying: tuple[int, ...]


@dataclass(frozen=True)
class QuarantineClearJson:
    """`torchrelay quarantine clear --json`. `outcome`: cleared, checking (its node looks at it) or refused."""

    run_id: str
    subject: str
    outcome: str
    reason: str


@dataclass(frozen=True)
class SparesAddJson:
    """`torchrelay spares add --json`. `outcome`: ready, accepted (it is not waited for), not-ready or refused.

    `ready`: those of the new ones that can take over.
    """

    run_id: str
    count: int
    outcome: str
    reason: str
    ready: tuple[str, ...]


def print_json(told: Any) -> None:
    """Print an object of a dataclass as one line of JSON."""
    print(json.dumps(dataclasses.asdict(told)), flush=True)
