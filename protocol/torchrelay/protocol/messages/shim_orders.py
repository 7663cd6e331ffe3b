"""What a training process is told to do: commands of the controller, handed on by its agent."""

from __future__ import annotations

from dataclasses import field

from torchrelay.protocol.messages.message import message


@message(frozen=True)
class Ack:
    """The agent has taken the report that needs an answer (Hello, FaultInjected).

    `identity`: to Hello, key and certificate (PEM) with which the process serves others by TLS. Not for other eyes.
    """

    identity: str = ""


@message(frozen=True)
class Begin:
    """Answer to a process that asked what it is (`names.ENV_ASK`): its name, its journal's folder, and whether it is a spare.

    To one that has been parked as a spare: run the script from its beginning, with the environment `env`.
    To a launcher: meet the others as always, or, as a spare, start processes that are to be parked.
    """

    worker: str
    journal: str
    spare: bool
    env: dict[str, str] = field(default_factory=dict)
    refusal: str = ""
    """Why this process is not protected; it runs as it is."""
    kept: str = ""
    """Where it keeps copies of ranks' states; empty: where its environment says."""


@message(frozen=True)
class EndNow:
    """End at once, as by SIGKILL, whatever the script is doing: another process has the rank.

    `again`: the process is to begin anew in its place, as its container would start it, and asks what it is to be.
    """

    exit_code: int
    again: bool = False


@message(frozen=True)
class Protect:
    """All ranks are armed (`on`), or at least one is not and the job runs unprotected.

    `gate_secret`: what ranks prove to each other when they connect the first generation's gate. Not for other eyes.
    """

    on: bool
    reason: str
    gate_secret: bytes = field(default=b"", repr=False)


@message(frozen=True)
class Assign:
    """To a spare: become `rank`. `env` is what the launcher would have set; `set_up` is the recording of the lost rank's set-up."""

    generation: int
    rank: int
    world_size: int
    env: dict[str, str] = field(default_factory=dict)
    set_up: bytes = b""


@message(frozen=True)
class Rehearse:
    """To a spare: let a child process go the way of a joiner that takes over `rank`, up to `boundary`, and report Rehearsed.

    `env` and `set_up` are as in Assign; `journal` is the rank's journal of that boundary. The spare stays a spare.
    """

    request: int
    rank: int
    world_size: int
    boundary: int
    env: dict[str, str] = field(default_factory=dict)
    set_up: bytes = b""
    journal: bytes = b""


@message(frozen=True)
class Ping:
    """Answer with Pong: a process that nobody needs yet is looked after, too."""

    number: int


@message(frozen=True)
class EndRehearsal:
    """To a spare: end the child that rehearses; nobody waits for its result."""

    request: int


@message(frozen=True)
class Interrupt:
    """A new generation is on its way: break what you wait in, and say where you stand."""

    generation: int
    reason: str


@message(frozen=True)
class QuiesceAt:
    quiesce_id: int
    generation: int
    boundary: int


@message(frozen=True)
class QuiesceDecided:
    quiesce_id: int
    go: bool


@message(frozen=True)
class Serve:
    """Open the tensor channel of `generation` for one peer, who shows `token`. Your tensors are those of `boundary`.

    `kept`: to a joiner of a rollback, the folder of a copy taken at `boundary`, on its node: give what lies there instead.
    `behind_update`: the peer goes through the rest of the step that ends there: give the gradients of its update, too.
    """

    generation: int
    boundary: int
    token: str
    peer_host: str
    kept: str = ""
    behind_update: bool = False


@message(frozen=True)
class Plan:
    """What this process does to be at boundary `target`.

    `action`: a `positions.SurvivorAction` or `positions.JoinerAction`.
    A joiner takes tensors from the donor at `donor_host:donor_port`, and from others that hold the same (`more_hosts`,
    `more_ports`, with the same token), or from the files in `directory`.
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
    place: str = ""
    """Which loop's boundary `target` is, as in Standing; empty if nobody is there yet."""
    kept: str = ""
    """For `enter` of a rollback: the folder of the rank's copy, taken at `target`, from which its tensors come."""
    set_up: bytes = b""
    """The rank's record of its set-up, if it is another than the one in Assign: training has gone on to a later loop."""
    after: bytes = b""
    """For `shadow`: what the lost rank's collectives behind that gate gave it alone."""
    more_hosts: tuple[str, ...] = ()
    more_ports: tuple[int, ...] = ()
    left: str = ""
    """For `shadow`: the boundary at which the others have left the loop, as in Standing: it is passed over."""
    carried: tuple[str, ...] = ()
    """Paths of tensors that come from the lost rank's own copy, made in the step that it was lost in."""
    compared: int = -1
    """The newest boundary at which contents of the lost rank and of its donor were compared; -1: the tensors are its own."""
    lacking: tuple[str, ...] = ()
    """Paths of optimizer state that the donor had at that boundary, and the lost rank had not."""


@message(frozen=True)
class Rebuild:
    """Connect all communicators anew. `gate_secret`: of this generation, as in Protect."""

    generation: int
    target: int
    store_host: str
    store_port: int
    gate_secret: bytes = field(default=b"", repr=False)


@message(frozen=True)
class Commit:
    generation: int


@message(frozen=True)
class Abandon:
    """Planned migration only: everything stays as it was in the generation before."""

    generation: int
    reason: str


@message(frozen=True)
class SaveCheckpoint:
    """Write your device state below `directory`; nothing goes on after this."""

    generation: int
    directory: str
    save_tensors: bool
    target: int = -1
    """The boundary whose tensors these are."""


@message(frozen=True)
class KeepFile:
    """Write a piece of a checkpoint's file; `whole`: the file ends with it. Answered by FilesKept after the `last` one of all."""

    generation: int
    directory: str
    name: str
    data: bytes
    whole: bool
    last: bool


@message(frozen=True)
class SetAside:
    """To a parked process: rename these checkpoints, so that no script takes them for good ones; answered by AsideSet."""

    paths: tuple[str, ...]


@message(frozen=True)
class ClearCheckpoints:
    """Remove the just-in-time checkpoints of jobs called `job` in `folder`, but for the `keep` newest whole ones of this job.

    `job_id`: this job, as `checkpoint_owner.job_id` returns it. `run_id`: this run of it, which may be writing one meanwhile.
    """

    folder: str
    job: str
    keep: int
    job_id: str = ""
    run_id: str = ""


@message(frozen=True)
class MayFinish:
    """No one needs this process's state any more."""


@message(frozen=True)
class PassGate:
    """Others have passed the gate that this rank stands at: it goes on from there, and comes to a stand again behind it."""

    generation: int


@message(frozen=True)
class Explain:
    """Say what the training thread is doing, watched for `watch_s`. Answered by a thread of the shim's own."""

    request: int
    watch_s: float


@message(frozen=True)
class CopyJournals:
    """Send a copy of each journal to the agent of `node`, who knows `token`; to nobody where `host` is empty."""

    node: str
    host: str
    port: int
    token: bytes


@message(frozen=True)
class KeepCopies:
    """Whether copies of the state are to be kept, and which rank, on another node, fetches one (-1: none does)."""

    on: bool
    reason: str
    buddy: int = -1
    buddy_host: str = ""
    every: int = 0
    """Steps between two copies, where ranks were not told at their start."""
    own: tuple[str, ...] = ()
    """Paths of tensors that no other rank holds: they are copied in each step instead, where that costs little."""


@message(frozen=True)
class LiftGates:
    """Wait for nobody in front of an update any more: ranks make unlike numbers of updates. Go on without protection."""

    reason: str


@message(frozen=True)
class TakeCopy:
    """Fetch the copy of `rank`, taken at `boundary`, from the channel that it has opened, and keep it for it."""

    rank: int
    boundary: int
    host: str
    port: int
    token: str


@message(frozen=True)
class NumbersDecided:
    """The step that starts at `boundary` goes on, whatever was suspect about its numbers."""

    boundary: int


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
    | PassGate
    | Explain
    | CopyJournals
    | Begin
    | EndNow
    | KeepCopies
    | LiftGates
    | TakeCopy
    | NumbersDecided
    | KeepFile
    | SetAside
    | ClearCheckpoints
    | Rehearse
    | EndRehearsal
    | Ping
)

SpareOrder = Assign | Begin | Rehearse | EndRehearsal
"""What a process is told that has no rank yet."""
SwitchOrder = Serve | Plan | Rebuild | SaveCheckpoint | KeepFile | Commit | Abandon | PassGate
"""What a rank is told that stands still for a migration, or joins: its training thread follows."""
MigrationOrder = (
    SwitchOrder
    | Interrupt
    | CopyJournals
    | QuiesceAt
    | QuiesceDecided
    | LiftGates
    | NumbersDecided
    | KeepCopies
    | TakeCopy
)
"""What only a process is told that has come to its process group: its engine follows, or what belongs to that."""
