"""Messages between shim, agent and controller, as plain dataclasses (standard library only).

`relay.proto` has a message of the same name and fields for each; `convert` turns one into the other. Between shim and
agent they travel as JSON (`wire`). Reports state past facts, orders are commands.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from torchrelay.protocol.health_messages import HealthSignal as HealthSignal
from torchrelay.protocol.health_messages import HealthSignals as HealthSignals
from torchrelay.protocol.health_messages import HealthSources as HealthSources


@dataclass(frozen=True)
class Hello:
    """First message of a training process. `token` proves that the agent started it."""

    worker: str
    token: str
    pid: int
    python_version: str
    spare: bool


@dataclass(frozen=True)
class Warm:
    """A spare has imported torch and waits for a rank."""

    torch_version: str


@dataclass(frozen=True)
class Armed:
    """The script has set up its default process group; the shim could protect it from here on."""

    rank: int
    world_size: int
    backend: str
    torch_version: str


@dataclass(frozen=True)
class Disabled:
    """The shim cannot protect this process and lets it run as it is."""

    reason: str


@dataclass(frozen=True)
class Gap:
    """One thing that a rank's protection lacks. `kind` is stable, for programs; `text` is for people.

    `effect`: one of `names.GAP_EFFECTS`. `file` and `line`: where it is made in the script; empty and 0 where no line makes it.
    """

    kind: str
    effect: str
    text: str
    file: str = ""
    line: int = 0


@dataclass(frozen=True)
class Report:
    """Protection report of one rank, sent when the training loop is known and again when it changes.

    `head_s`, `gate_s`: what a step costs on the training thread, mean since the report before, at the loop's head and before
    the optimizer step; `barrier_s`: the shortest wait in the gate's barrier. `memory_bytes`: shared memory of the journals.
    `settled`: the training loop is known, and no more taken for the outermost one that there is.
    """

    file: str
    line: int
    device_state_bytes: int
    journal_bytes: int
    tensors: int
    unprotected: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    gaps: tuple[Gap, ...] = ()
    boundary: int = -1
    settled: bool = False
    head_s: float = 0.0
    gate_s: float = 0.0
    barrier_s: float = 0.0
    memory_bytes: int = 0


@dataclass(frozen=True)
class ReplicaCheck:
    """Content digests of this rank's device state at one boundary: tensor path -> 16 hex digits."""

    boundary: int
    digests: dict[str, str] = field(default_factory=dict)
    ddp_paths: tuple[str, ...] = ()
    """Paths that a data parallel wrapper keeps equal on all ranks; counts where no later check exists yet.

    `PATH@0,2`: on these ranks. `PATH@=0,2`: nothing made them equal at the start, so they are if they were so at a check.
    """


@dataclass(frozen=True)
class Standing:
    """This rank stands still, at a place from where it can be rewound, sent forward or left as it is.

    `position`: `head` (of the loop), `body` (before the gate), `gate`, `after` (past the gate), `sharded` (the same, and a
    sharded model has communicated since), `finished` (script's end).
    `collective_log`: results of the collectives since the last gate that was passed, for ranks that have to catch up.
    `store_port`: where this rank would host the store of the next generation.
    """

    generation: int
    boundary: int
    gates_passed: int
    position: str
    detail: str
    store_host: str
    store_port: int
    collective_log: bytes = b""
    log_length: int = 0
    ddp_layout: str = ""
    """Bucket layout of each data parallel wrapper, as the shim writes it; a joiner must use a survivor's."""
    late: dict[str, int] = field(default_factory=dict)
    """Tensors that were written since the latest optimizer step (after it in the same iteration, not by it), and how often."""


@dataclass(frozen=True)
class QuiesceAnswer:
    """Answer to QuiesceAt: whether the boundary still lies ahead of this rank."""

    quiesce_id: int
    accepted: bool
    at_boundary: int


@dataclass(frozen=True)
class Prepared:
    """The joiner has done the script's set-up and stands before its outermost training loop."""

    generation: int
    store_host: str
    store_port: int


@dataclass(frozen=True)
class Serving:
    """A donor's tensor channel is open for the one peer that was named."""

    generation: int
    host: str
    port: int


@dataclass(frozen=True)
class Transferred:
    """The joiner holds the recorded state; digests of all tensors agree with the source's."""

    generation: int
    size_bytes: int
    tensors: int
    elapsed_s: float


@dataclass(frozen=True)
class Rebuilt:
    """The communicators of the new generation are connected."""

    generation: int
    elapsed_s: float


@dataclass(frozen=True)
class Verified:
    """A collective over the new generation agreed on generation and boundary."""

    generation: int


@dataclass(frozen=True)
class Resumed:
    """The script runs again. `steps_redone` is 1 where the step in flight is done again."""

    generation: int
    steps_redone: int


@dataclass(frozen=True)
class FirstStep:
    """The first optimizer step of a generation is done."""

    generation: int
    boundary: int


@dataclass(frozen=True)
class OrderFailed:
    """This process could not do what it was ordered to do for this generation."""

    generation: int
    order: str
    reason: str


@dataclass(frozen=True)
class ScriptFailed:
    """The script ended with an exception of its own, or with sys.exit(code)."""

    kind: str
    message: str
    exit_code: int
    boundary: int


@dataclass(frozen=True)
class Finishing:
    """The script reached its end; the process waits for MayFinish, since its state may still be needed."""

    boundary: int


@dataclass(frozen=True)
class FaultInjected:
    """A fault of --inject is about to fire here."""

    fault: str
    boundary: int


@dataclass(frozen=True)
class MigrationWanted:
    """The process itself asks to be moved (fault `planned`)."""

    reason: str


@dataclass(frozen=True)
class CheckpointSaved:
    generation: int
    size_bytes: int


@dataclass(frozen=True)
class Held:
    """The rank stands at the head of its loop, as `torchrelay check` wants, and goes no further."""

    boundary: int


@dataclass(frozen=True)
class JournalsCopied:
    """The agent of `node` holds what it takes to replace this rank when its own node is lost; first at gate `boundary`."""

    node: str
    boundary: int


@dataclass(frozen=True)
class Explained:
    """What the training thread of this process was doing, asked for with `Explain`.

    `stack`: innermost call first, as `function (file:line)`. `motion`: `moving`, `circling` (code runs, and nothing that it
    could see changes), `still` (inside one call all the time), or empty where it was not watched. `source`: who looked.
    `asleep`, of the agent: every thread of the process and of its children waits for another one of them, so that nothing from
    outside can wake it: no disk, no network, no clock.
    """

    request: int
    stack: tuple[str, ...]
    motion: str
    source: str
    asleep: bool = False


@dataclass(frozen=True)
class JournalCopyLost:
    """Journals are copied to `node` no more: a loss of the rank's own node could not be survived now."""

    node: str
    reason: str


ShimReport = (
    Hello
    | Warm
    | Armed
    | Disabled
    | Report
    | ReplicaCheck
    | Standing
    | QuiesceAnswer
    | Prepared
    | Serving
    | Transferred
    | Rebuilt
    | Verified
    | Resumed
    | FirstStep
    | OrderFailed
    | ScriptFailed
    | Finishing
    | FaultInjected
    | MigrationWanted
    | CheckpointSaved
    | Held
    | Explained
    | JournalsCopied
    | JournalCopyLost
)


@dataclass(frozen=True)
class Ack:
    """The agent has taken the report that needs an answer (Hello, FaultInjected)."""


@dataclass(frozen=True)
class Protect:
    """All ranks are armed (`on`), or at least one is not and the job runs unprotected."""

    on: bool
    reason: str


@dataclass(frozen=True)
class Assign:
    """To a spare: become `rank`. `env` is what the launcher would have set; `set_up` is the recording of the lost rank's set-up."""

    generation: int
    rank: int
    world_size: int
    env: dict[str, str] = field(default_factory=dict)
    set_up: bytes = b""


@dataclass(frozen=True)
class Interrupt:
    """A new generation is on its way: break what you wait in, and say where you stand."""

    generation: int
    reason: str


@dataclass(frozen=True)
class QuiesceAt:
    quiesce_id: int
    generation: int
    boundary: int


@dataclass(frozen=True)
class QuiesceDecided:
    quiesce_id: int
    go: bool


@dataclass(frozen=True)
class Serve:
    """Open the tensor channel of `generation` for one peer, who shows `token`. Your tensors are those of `boundary`."""

    generation: int
    boundary: int
    token: str
    peer_host: str


@dataclass(frozen=True)
class Plan:
    """What this process does to be at boundary `target`.

    `action`: `stay` (at the head of `target`), `rewind` (to `target`), `forward` (finish the step that leads to it),
    `enter` (joiner, state of `target`), `shadow` (joiner, from the boundary before, with the gate journal),
    `leave` (planned: hold still; the process is ended once its rank lives elsewhere).
    A joiner takes tensors from the donor at `donor_host:donor_port`, or from the files in `directory`.
    """

    generation: int
    target: int
    action: str
    journal: bytes = b""
    gate_journal: bytes = b""
    collective_log: bytes = b""
    ddp_layout: str = ""
    donor_host: str = ""
    donor_port: int = 0
    token: str = ""
    directory: str = ""
    offline: bool = False
    """Some rank has finished its script: no communicator is rebuilt, every collective that is left was recorded."""
    late: dict[str, int] = field(default_factory=dict)
    """For `shadow`: tensors that the donor has written since the optimizer step, where the joiner starts, and how often."""
    donor_collectives: int = -1
    """The donor stands in the collective after this many since its gate, or (-1) at the head of `target`."""


@dataclass(frozen=True)
class Rebuild:
    generation: int
    target: int
    store_host: str
    store_port: int


@dataclass(frozen=True)
class Commit:
    generation: int


@dataclass(frozen=True)
class Abandon:
    """Planned migration only: everything stays as it was in the generation before."""

    generation: int
    reason: str


@dataclass(frozen=True)
class SaveCheckpoint:
    """Write your device state below `directory`; nothing goes on after this."""

    generation: int
    directory: str
    save_tensors: bool


@dataclass(frozen=True)
class MayFinish:
    """No one needs this process's state any more."""


@dataclass(frozen=True)
class Explain:
    """Say what the training thread is doing, watched for `watch_s`. Answered by a thread of the shim's own."""

    request: int
    watch_s: float


@dataclass(frozen=True)
class CopyJournals:
    """Send a copy of each journal to the agent of `node`, who knows `token`; to nobody where `host` is empty."""

    node: str
    host: str
    port: int
    token: bytes


ShimOrder = (
    Ack
    | Protect
    | Assign
    | Interrupt
    | QuiesceAt
    | QuiesceDecided
    | Serve
    | Plan
    | Rebuild
    | Commit
    | Abandon
    | SaveCheckpoint
    | MayFinish
    | Explain
    | CopyJournals
)


@dataclass(frozen=True)
class WorkerInfo:
    worker: str
    rank: int
    pid: int


@dataclass(frozen=True)
class AgentHello:
    """First message of a stream. `session` names the life of the agent, through all its streams; `first` is the number
    of the message that follows, counted over that life without AgentHello and Progress (see `delivery`).
    `copies_port`, `copies_token`: where it keeps copies of other nodes' journals (see `journal_copy`).
    """

    node: str
    node_rank: int
    host: str
    workers: tuple[WorkerInfo, ...]
    session: str = ""
    first: int = 0
    copies_port: int = 0
    copies_token: bytes = b""


@dataclass(frozen=True)
class FromWorker:
    """One report of a training process, passed on by its agent."""

    worker: str
    report: ShimReport


@dataclass(frozen=True)
class WorkerExited:
    """`signal` is 0 unless a signal ended it; `fenced` says that the agent did it on the controller's word."""

    worker: str
    exit_code: int
    signal: int
    fenced: bool


@dataclass(frozen=True)
class WorkerProgress:
    """Read from the shared memory of a training process, and from the kernel.

    `phase`: one of `journal.PHASES`; `waiting`: inside a collective; `count`: goes up with everything the loop does.
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


@dataclass(frozen=True)
class Progress:
    workers: tuple[WorkerProgress, ...]


@dataclass(frozen=True)
class JournalContent:
    """What the shared memory of a worker holds, also after its death: boundary -> journal, gate's boundary -> gate journal."""

    worker: str
    boundaries: dict[int, bytes] = field(default_factory=dict)
    gates: dict[int, bytes] = field(default_factory=dict)
    set_up: bytes = b""


FromAgent = AgentHello | FromWorker | WorkerExited | Progress | JournalContent | HealthSignals | HealthSources


@dataclass(frozen=True)
class ToWorker:
    worker: str
    order: ShimOrder


@dataclass(frozen=True)
class Fence:
    """End the worker now, with all its children; answered by WorkerExited (also if it was gone already)."""

    worker: str


@dataclass(frozen=True)
class FetchJournal:
    """Of one of the agent's own workers, or of another node's whose journals it has copies of."""

    worker: str


@dataclass(frozen=True)
class StopJob:
    """End all workers (with `signal` first, SIGKILL after a grace) and the agent; the command ends with `exit_code`."""

    exit_code: int
    signal: int
    reason: str


@dataclass(frozen=True)
class Taken:
    """The controller has the agent's first `count` messages, so that no later stream repeats them."""

    count: int


@dataclass(frozen=True)
class LookClosely:
    """While `on`, which is during a migration, every change of progress is told as soon as it is seen."""

    on: bool


ToAgent = ToWorker | Fence | FetchJournal | StopJob | Taken | LookClosely


@dataclass(frozen=True)
class RankStatus:
    """`state`: `starting`, `running`, `standing` (in a migration), `lost`, `finished`."""

    rank: int
    worker: str
    node: str
    pid: int
    boundary: int
    phase: str
    state: str


@dataclass(frozen=True)
class Against:
    """One row of the protection report: `answer` is `yes`, `partly` or `no`; `how`: by which mechanism, or why not."""

    what: str
    answer: str
    how: str


@dataclass(frozen=True)
class RankGap:
    """A gap, with the ranks that have it."""

    ranks: tuple[int, ...]
    kind: str
    effect: str
    text: str
    file: str
    line: int


@dataclass(frozen=True)
class Coverage:
    """The protection report of the whole job. `level`: `pending`, `protected`, `partly` or `unprotected`, and why.

    `file`, `line`: the loop that was taken for the training loop. Costs are of the rank that has the highest; `step_s` is the
    median step. `notes`: what is assumed.
    """

    level: str
    reason: str
    file: str
    line: int
    against: tuple[Against, ...]
    gaps: tuple[RankGap, ...]
    notes: tuple[str, ...]
    step_s: float
    head_s: float
    gate_s: float
    barrier_s: float
    journal_bytes: int
    memory_bytes: int
    device_state_bytes: int
    tensors: int


@dataclass(frozen=True)
class JobStatus:
    """What `torchrelay status` shows. `protection`: `on`, `off` or `pending`, with the reason in words."""

    run_id: str
    world_size: int
    generation: int
    spares_warm: int
    spares_total: int
    protection: str
    protection_reason: str
    steps_per_s: float
    migrations_done: int
    last_migration: str
    ranks: tuple[RankStatus, ...]
    reports: tuple[str, ...] = ()
    coverage: tuple[Coverage, ...] = ()
    """The protection report of the job; one, or none from a controller that does not know of it."""
    quarantine: tuple[str, ...] = ()
    """Devices and nodes that are given no rank, each with its reason."""
    health: tuple[str, ...] = ()
    """Sources of evidence that are dead, and the newest verdicts."""


@dataclass(frozen=True)
class JobEvent:
    """One line of `--events`: `fields_json` is a JSON object whose keys depend on `name` (documented in docs/events.md)."""

    time_s: float
    name: str
    fields_json: str


@dataclass(frozen=True)
class MigrateRequest:
    rank: int
    reason: str


@dataclass(frozen=True)
class MigrateReply:
    """`accepted` or not, and why; with `wait` the stream of events tells the rest."""

    accepted: bool
    migration: str
    message: str


@dataclass(frozen=True)
class ClearRequest:
    """A person, or a check that was passed, takes `subject` (a device or a node) out of quarantine."""

    subject: str
    reason: str


@dataclass(frozen=True)
class ClearReply:
    cleared: bool
    message: str


@dataclass(frozen=True)
class StopRequest:
    signal: int


@dataclass(frozen=True)
class WatchRequest:
    """With `without_progress` the newest progress is told at the job's end alone: nobody looks at it before."""

    without_progress: bool


@dataclass(frozen=True)
class Empty:
    """A request or a reply without content (Status, Stop)."""
