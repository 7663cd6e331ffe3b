"""What an agent tells the controller."""

from __future__ import annotations

from dataclasses import field

from torchrelay.protocol.messages.health import HealthSignal, HealthSignals, HealthSources
from torchrelay.protocol.messages.message import message
from torchrelay.protocol.messages.shim_reports import ShimReport


@message(frozen=True)
class WorkerInfo:
    """`launch`: as in Hello, or of the rank that it took over, where the agent did not start it.

    `generation`: the newest that it has heard of; -1 as long as no controller has said what it is. `protected`: as in Protect.
    `in_force`: the generation in which it holds its rank; -1 as long as it has not been let into any.
    `gate_secret`: the one in that Protect. All four are for a controller that is new to a job which trains.
    """

    worker: str
    rank: int
    pid: int
    launch: dict[str, str] = field(default_factory=dict)
    generation: int = -1
    protected: bool = False
    in_force: int = -1
    gate_secret: bytes = field(default=b"", repr=False)


@message(frozen=True)
class Program:
    """What a machine of the job was told to run, as far as all of them have to agree. Empty fields are not known.

    `script`: its absolute path, or `-m module`; `sha256`: of its file. `sources`: Python files in its folder -> digest;
    `imported`: those of them that it imports; `sources_cut`: there are no others in `sources`, since the folder has too many.
    `jit_dirs`: its folders for just-in-time checkpoints; `jit_marks`: what stands in each for all machines that see the same
    folder, empty where nothing can be written; `jit_given`: whether the user has named them. Of a check that waits for those of
    other machines: `node`, this machine as it is called, and `check`, by which it is known when it asks again.
    """

    script: str = ""
    sha256: str = ""
    sources: dict[str, str] = field(default_factory=dict)
    python: str = ""
    torch: str = ""
    inject: tuple[str, ...] = ()
    resume_command: str = ""
    """What goes on from a just-in-time checkpoint on this machine; `{directory}` is to be filled in."""
    jit_dirs: tuple[str, ...] = ()
    jit_marks: tuple[str, ...] = ()
    jit_given: bool = False
    imported: tuple[str, ...] = ()
    sources_cut: bool = False
    nnodes: int = 0
    nproc_per_node: int = 0
    master_port: int = 0
    node: str = ""
    check: str = ""


@message(frozen=True)
class AgentHello:
    """First message of a stream. `session` names the life of the agent, through all its streams; `first` is the number
    of the message that follows, counted over that life without AgentHello, OrdersTaken and Progress (see `delivery`).
    `copies_port`, `copies_token`: where it keeps copies of other nodes' journals (see `journal_copy`); `copies_of`: workers of
    which it has some -> the newest gate. `job`, `epoch`: the newest that it follows; `candidate`: HOST:PORT of a
    controller that the command of this machine would start (see `leading`). `spares`: how many it is to have.
    """

    node: str
    node_rank: int
    host: str
    workers: tuple[WorkerInfo, ...]
    session: str = ""
    first: int = 0
    copies_port: int = 0
    copies_token: bytes = b""
    copies_of: dict[str, int] = field(default_factory=dict)
    job: str = ""
    epoch: int = 0
    candidate: str = ""
    program: Program = field(default_factory=Program)
    spares: int = 0


@message(frozen=True)
class Room:
    """What this user can still write below `path`. `problem`: why that is nothing."""

    path: str
    free_bytes: int
    problem: str = ""


@message(frozen=True)
class RoomLeft:
    """How much room a node has left.

    `memory`: where journals lie. `folders`: where a just-in-time checkpoint may go, in the order of preference.
    """

    memory: Room
    folders: tuple[Room, ...] = ()


@message(frozen=True)
class FromWorker:
    """One report of a training process, passed on by its agent."""

    worker: str
    report: ShimReport


@message(frozen=True)
class WorkerExited:
    """A worker has ended. `signal` is 0 unless a signal ended it; `fenced`: the agent ended it on the controller's order."""

    worker: str
    exit_code: int
    signal: int
    fenced: bool


@message(frozen=True)
class WorkerProgress:
    """Read from the shared memory of a training process, and from the kernel.

    `phase`: a `positions.RankPhase`; `waiting`: inside a collective; `count`: goes up with everything the loop does.
    `process_state`: the letter of /proc/PID/stat (`T` is stopped); `R`, unasked, where the record has just moved.
    `still_s`: since the record last moved; `idle_s`: since the process was last seen at work. Both as the agent saw it,
    who looks more often than it tells.
    """

    worker: str
    boundary: int
    gates_passed: int
    phase: str
    waiting: bool
    count: int
    process_state: str
    still_s: float = 0.0
    idle_s: float = 0.0
    waited_s: float = 0.0
    """How long it has been inside of collectives since it began, up to the last boundary."""


@message(frozen=True)
class OrdersTaken:
    """The agent has the controller's first `count` orders, so that no later stream repeats them."""

    count: int


@message(frozen=True)
class Progress:
    workers: tuple[WorkerProgress, ...]


@message(frozen=True)
class JournalContent:
    """What the shared memory of a worker holds, also after its death: boundary -> journal, gate's boundary -> gate journal.

    `after`: gate's boundary -> what the rank's collectives behind it gave this rank alone. `checks`: boundary -> the ReplicaCheck
    that it told there, as a frame; of a copy, for a controller that has not heard it.
    """

    worker: str
    boundaries: dict[int, bytes] = field(default_factory=dict)
    gates: dict[int, bytes] = field(default_factory=dict)
    set_up: bytes = b""
    after: dict[int, bytes] = field(default_factory=dict)
    checks: dict[int, bytes] = field(default_factory=dict)


@message(frozen=True)
class WorkerStarted:
    """A process of this node that was not there when the stream began; answered by a Begin to it."""

    worker: str
    rank: int
    pid: int
    launch: dict[str, str] = field(default_factory=dict)

    @property
    def info(self) -> WorkerInfo:
        return WorkerInfo(self.worker, self.rank, self.pid, self.launch)


@message(frozen=True)
class DeviceChecked:
    """The answer to CheckDevice: `found` if somebody could read it, and what was not as it should be while it was looked at."""

    subject: str
    found: bool
    message: str
    signals: tuple[HealthSignal, ...] = ()


@message(frozen=True)
class LateWorker:
    """A process that was asked for with StartWorker; it warms up as a spare does. `pid` 0: it could not be, for `reason`.

    `rank`, `in_place_of`: as in the order.
    """

    worker: str
    rank: int
    pid: int
    reason: str = ""
    in_place_of: str = ""


@message(frozen=True)
class RehearserStarted:
    """The answer to StartRehearser. `pid` 0: no process was started, for `reason`. It warms up as a spare does, and is none."""

    worker: str
    pid: int
    reason: str = ""


@message(frozen=True)
class KeptCopy:
    """A whole copy of a rank's state at `boundary` that this node has. The tensors are in `directory`, in shared memory."""

    rank: int
    boundary: int
    directory: str
    journal: bytes = b""
    set_up: bytes = b""
    ddp_layout: str = ""


@message(frozen=True)
class KeptCopies:
    """Copies that this node has. `last`: there are no more of them on this node."""

    copies: tuple[KeptCopy, ...] = ()
    last: bool = True


@message(frozen=True)
class CheckpointFile:
    """One file of a just-in-time checkpoint, as FetchCheckpoint asks for; `reason`: why it cannot be read. `last`: that was all."""

    directory: str
    name: str
    data: bytes = b""
    reason: str = ""
    last: bool = False


@message(frozen=True)
class FoundCheckpoint:
    """A checkpoint on disk. `step` is -1 if nothing says it; `broken`: why it is not whole, or empty.

    `ours`: a just-in-time one, not the script's.
    """

    path: str
    step: int
    broken: str = ""
    ours: bool = False


@message(frozen=True)
class CheckpointsFound:
    """The answer to FindCheckpoints; `reason`: why the folder cannot be looked at.

    `of_others`: how many just-in-time ones other jobs have saved there.
    """

    found: tuple[FoundCheckpoint, ...] = ()
    reason: str = ""
    of_others: int = 0


FromAgent = (
    AgentHello
    | WorkerStarted
    | FromWorker
    | WorkerExited
    | OrdersTaken
    | Progress
    | JournalContent
    | HealthSignals
    | HealthSources
    | DeviceChecked
    | LateWorker
    | RehearserStarted
    | KeptCopies
    | CheckpointFile
    | CheckpointsFound
    | RoomLeft
)
