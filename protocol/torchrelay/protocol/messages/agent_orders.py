"""What the controller tells an agent to do."""

from __future__ import annotations

from torchrelay.protocol.messages.message import message
from torchrelay.protocol.messages.shim_orders import ShimOrder
from torchrelay.protocol.messages.shim_reports import ReplicaCheck


@message(frozen=True)
class ToWorker:
    worker: str
    order: ShimOrder


@message(frozen=True)
class Follow:
    """This controller leads `job`: none of a lower epoch, or of another job, is followed from now on."""

    job: str
    epoch: int


@message(frozen=True)
class Fence:
    """End the worker now, with all its children; answered by WorkerExited (also if it was gone already).

    `again`: a StartWorker for this node follows. An agent that does not start processes lets this one begin anew in its place.
    """

    worker: str
    again: bool = False


@message(frozen=True)
class FetchJournal:
    """Send the journal of a worker of this agent, or of a worker of another node whose journals this agent has copies of."""

    worker: str


@message(frozen=True)
class ForgetJournals:
    """Forget the journals of a worker that has ended and was replaced: they, and copies of them, are not needed again."""

    worker: str


@message(frozen=True)
class Inherits:
    """The worker has a rank from now on. `checks`: what was said of the rank before, which a later controller must hear, too."""

    worker: str
    checks: tuple[ReplicaCheck, ...]


@message(frozen=True)
class StopJob:
    """End all workers (with `signal` first, SIGKILL after a grace) and the agent; the command ends with `exit_code`."""

    exit_code: int
    signal: int
    reason: str


@message(frozen=True)
class Taken:
    """The controller has the agent's first `count` messages, so that no later stream repeats them.

    The first one of a stream says of what follows: `orders_first` is the number of the next order, counted over the life of a
    controller, `orders_session`, without Taken (see `delivery`). `answers_every_s`: what the agent tells is answered at least so
    often, if only with Taken; 0 where nothing of the kind is promised.
    """

    count: int
    orders_session: str = ""
    orders_first: int = 0
    answers_every_s: float = 0.0


@message(frozen=True)
class LookClosely:
    """While `on`, which is during a migration, every change of progress is told as soon as it is seen."""

    on: bool


@message(frozen=True)
class TellEvery:
    """So often an agent is to tell of ranks of which nothing is to be said but that they move on; what is news is told at once."""

    seconds: float


@message(frozen=True)
class TellAgain:
    """The controller is new to this job: what workers have said of themselves is to be said once more."""


@message(frozen=True)
class CheckDevice:
    """Look at this device, or at all of the node, afresh: may it be used again?"""

    subject: str


@message(frozen=True)
class StartWorker:
    """Start one more process; answered by LateWorker.

    `rank`: the one that it is to take over, on its own node; NO_RANK for a spare. `in_place_of`: the worker of this node that has
    ended and whose device it gets, or a GPU that is free; empty: none. `idle`: training must not be slowed by it, see
    RaisePriority. `more`: once it is started, the node is to have one spare more than before.
    """

    rank: int
    in_place_of: str = ""
    idle: bool = False
    more: bool = False


@message(frozen=True)
class RaisePriority:
    """Let a process that was started `idle` run like any other from now on, since it is waited for."""

    worker: str


@message(frozen=True)
class StartRehearser:
    """Start a process of low priority that can rehearse, on the node of worker `beside`; answered by RehearserStarted.

    None is started where there is no memory for as much again as `beside` has.
    """

    beside: str


@message(frozen=True)
class FetchKept:
    """Say which whole copies of ranks' states this node has; answered by KeptCopies."""


@message(frozen=True)
class RestartWorkers:
    """The job begins again: end all processes and forget them. The agent stays, and opens its stream anew; who starts asks."""

    reason: str


@message(frozen=True)
class FetchCheckpoint:
    """Read the files of a just-in-time checkpoint that the controller needs; each is answered by CheckpointFile."""

    directory: str


@message(frozen=True)
class FindCheckpoints:
    """Look for checkpoints that the script, or we, have written below `directory`; answered by CheckpointsFound.

    `job`: whose just-in-time ones count, as `checkpoint_owner.job_id` returns it.
    """

    directory: str
    job: str = ""


ToAgent = (
    ToWorker
    | Follow
    | Fence
    | FetchJournal
    | ForgetJournals
    | Inherits
    | StopJob
    | Taken
    | LookClosely
    | TellEvery
    | TellAgain
    | CheckDevice
    | StartWorker
    | StartRehearser
    | RaisePriority
    | FetchKept
    | RestartWorkers
    | FetchCheckpoint
    | FindCheckpoints
)
