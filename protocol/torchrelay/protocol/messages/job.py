"""What the controller tells and is asked by commands: the job as a whole."""

from __future__ import annotations

from torchrelay.protocol.messages.message import message


@message(frozen=True)
class RankStatus:
    """The status of a rank. `state`: `starting`, `running`, `standing` (in a migration), `lost`, `finished`."""

    rank: int
    worker: str
    node: str
    pid: int
    boundary: int
    phase: str
    state: str


@message(frozen=True)
class SpareStatus:
    """The status of a spare. `state`: one of `metrics.table.SPARE_STATES`; also says why it cannot take over now.

    `age_s`: how long its controller has known it.
    """

    worker: str
    node: str
    pid: int
    state: str
    age_s: float
    reason: str = ""


@message(frozen=True)
class Against:
    """One row of the protection report: `answer` is `yes`, `partly` or `no`; `how`: by which mechanism, or why not."""

    what: str
    answer: str
    how: str


@message(frozen=True)
class RankGap:
    """A gap, with the ranks that have it."""

    ranks: tuple[int, ...]
    kind: str
    effect: str
    text: str
    file: str
    line: int


@message(frozen=True)
class Coverage:
    """The protection report of the whole job. `level`: a `level.Level`, and why.

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
    copy_every: int = 0
    """Steps between two copies of the state in host memory; 0: none are made. `copy_s`: of the training thread, for one."""
    copy_bytes: int = 0
    copy_s: float = 0.0
    copy_sync: bool = False
    """A step begins when all ranks have theirs: `copy_s` has their digests, the buddy's and the wait for other ranks in it."""
    rehearsed: tuple[str, ...] = ()
    """What rehearsals have shown, a line for each rank, and why the latest one did not come to an end."""
    share: float = 0.0
    """Of a step, that capture takes: as in Report, of the rank that has the highest."""
    share_p95: float = 0.0
    transfer_encryption: str = ""
    """How tensors are protected between machines, as in Report; several, with commas, where ranks differ. Empty on one machine."""
    cause: str = ""
    """A `causes.ProtectionCause`: what the level hangs on; empty from a controller that does not say."""


@message(frozen=True)
class MigrationProgress:
    """How far all processes together are in a phase that moves tensors. `elapsed_s`: since it began. `left_s`: at the rate until
    now; -1 where that is not known.
    """

    migration: str
    phase: str
    done_bytes: int
    total_bytes: int
    elapsed_s: float
    bytes_per_s: float
    left_s: float


@message(frozen=True)
class JobStatus:
    """What `torchrelay status` shows. `protection`: a `level.Level`, with the reason in words."""

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
    spares_wanted: int = 0
    spares_making: int = 0
    """Of the others, those that are on their way."""
    spares_reason: str = ""
    """Why no more are made; empty where there are as many as there are to be."""
    ranks_spread: int = 0
    """How many ranks were moved so that the loss of one machine does not end the job."""
    spread_reason: str = ""
    """Which one is to move next, or why none does; empty where none would be of use. Before the job begins: which machine it waits
    for."""
    spares: tuple[SpareStatus, ...] = ()
    """Each process that stands ready, or is to."""
    moving: tuple[MigrationProgress, ...] = ()
    """One, while a migration moves tensors and has for a second."""


@message(frozen=True)
class JobEvent:
    """One line of `--events`: `fields_json` is a JSON object whose keys depend on `name` (documented in docs/events.md)."""

    time_s: float
    name: str
    fields_json: str


@message(frozen=True)
class MigrateRequest:
    """A person wants a rank to move. `by`: who asks, as the command says: it is the user who can read the job's secret."""

    rank: int
    reason: str
    by: str = ""


@message(frozen=True)
class MigrateReply:
    """The answer: `accepted` or not, and why. The stream of events tells the rest of `migration`."""

    accepted: bool
    migration: str
    message: str
    again: bool = False
    """Not now, but it may be accepted later."""


@message(frozen=True)
class CheckpointRequest:
    """A person (`by`) wants a checkpoint of the running job, which goes on; answered by MigrateReply."""

    reason: str
    by: str = ""


@message(frozen=True)
class ClearRequest:
    """A person (`by`), or with `check` a check that is passed, takes `subject` (a device or a node) out of quarantine."""

    subject: str
    reason: str
    check: bool = False
    by: str = ""


@message(frozen=True)
class ClearReply:
    """The answer to ClearRequest. `checking`: the agent looks at it, and an event tells the result."""

    cleared: bool
    message: str
    checking: bool = False


@message(frozen=True)
class QuarantineRequest:
    """A person (`by`) wants nothing to run on `subject` (a device or a node, as the status names it) any more."""

    subject: str
    reason: str
    by: str = ""


@message(frozen=True)
class QuarantineReply:
    """The answer: `accepted` or not, and why. `ranks` move to spares, one after the other, as soon as there are some.

    `staying`: ranks that use the subject and still are not moved; `message` says why.
    """

    accepted: bool
    message: str
    ranks: tuple[int, ...] = ()
    staying: tuple[int, ...] = ()


@message(frozen=True)
class AddSparesRequest:
    """A person (`by`) wants `count` spares more, on `node` if that is not empty."""

    count: int
    node: str
    by: str = ""


@message(frozen=True)
class AddSparesReply:
    """The answer: `accepted` or not, and why. `wanted`: how many there are to be from now on."""

    accepted: bool
    message: str
    wanted: int = 0


@message(frozen=True)
class StopRequest:
    """Ends the job. `by`: who asks; empty if the job's own command ends it."""

    signal: int
    by: str = ""


@message(frozen=True)
class WatchRequest:
    """Asks for the stream of events.

    With `without_progress` progress is told only once, at the job's end: nobody looks at it before.
    With `until_now` the stream ends after what has been told so far.
    """

    without_progress: bool
    until_now: bool = False


@message(frozen=True)
class Empty:
    """A request or a reply without content (Status, Stop)."""
