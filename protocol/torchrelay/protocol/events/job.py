"""A job as a whole: how it begins, how far it is, how it falls, begins again and ends."""

from __future__ import annotations

from torchrelay.protocol.messages.message import message


@message(frozen=True)
class JobStarted:
    """All nodes are there. `holders`: the worker that begins with each rank, in their order."""

    run_id: str
    world_size: int
    spares: int
    nodes: tuple[str, ...]
    holders: tuple[str, ...] = ()


@message(frozen=True)
class ProgressMade:
    """At most twice a second. `steps`: that every rank has done, -1 before the first begins; `ranks`: alive; `spares`: ready."""

    steps: int
    steps_per_s: float
    ranks: int
    spares: int


@message(frozen=True)
class TakenOver:
    """A new controller leads the job. `outcome`: what became of the migration that was under way, if any ranks had begun it:
    committed, abandoned or anew.
    """

    outcome: str
    reason: str


@message(frozen=True)
class JobFell:
    """The job cannot go on in its processes: `rank` is lost, or its script has failed by itself.

    `boundary`: the furthest that any rank has reached.

    `directory`: the just-in-time checkpoint of `saved_boundary`; empty where there is none, because of `refused`.
    `losses_at_step`: how often these processes have lost the rank at this step.
    """

    rank: int
    exit_code: int
    reason: str
    boundary: int
    by_script: bool
    directory: str
    saved_boundary: int
    refused: str
    losses_at_step: int = 1


@message(frozen=True)
class JobRestarted:
    """The command starts all processes anew. `rung`: a name of cli.restarting.choice; `tried`: those above it, and why not.

    `boundary`: where all ranks enter, from `directory`; -1: the script runs from its beginning.
    `steps`: done before, to be done again.
    """

    restart: int
    rung: str
    directory: str
    boundary: int
    steps: int
    reason: str
    tried: tuple[str, ...]


@message(frozen=True)
class RestartDone:
    """All ranks train again, so long after the loss."""

    restart: int
    elapsed_s: float


@message(frozen=True)
class JobFinished:
    """The last event, unless the command starts the job anew. `by`: who has asked for it; empty where nobody did."""

    exit_code: int
    reason: str
    by: str = ""


@message(frozen=True)
class Log:
    """`level`: info, warning or error."""

    level: str
    text: str
