"""What a training process says to its agent, and through it to the controller: past facts."""

from __future__ import annotations

import functools
from dataclasses import field
from typing import NamedTuple

from torchrelay.protocol.messages.explained import Explained
from torchrelay.protocol.messages.message import message
from torchrelay.protocol.messages.rank_report import Rehearsed, Report
from torchrelay.protocol.messages.shim_failures import CommunicationFailed, Unfit


@message(frozen=True)
class Hello:
    """First message of a training process. `token` proves that the agent started it."""

    worker: str
    token: str
    pid: int
    python_version: str
    spare: bool
    launch: dict[str, str] = field(default_factory=dict)
    """What its launcher has set of `launch_env.TORCHRUN_NAMES`; told where the agent did not start it."""
    again: bool = False
    """It knows what it is, and speaks to an agent that has been started anew. What follows is as in WorkerInfo."""
    generation: int = 0
    in_force: int = -1
    protected: bool = False
    launcher: bool = False
    """It is no training process, but one that starts them (torchrun), and asks whether it is to begin as always."""
    gpus: str = ""
    """Those of the node that it was given, as `gpu_selection` has it; told where the agent did not start it."""


@message(frozen=True)
class Warm:
    """A spare has imported torch and waits for a rank."""

    torch_version: str


@message(frozen=True)
class Pong:
    """The process and its link to the agent live. `number`: of the Ping."""

    number: int


@message(frozen=True)
class Armed:
    """The script has set up its default process group; the shim could protect it from here on."""

    rank: int
    world_size: int
    backend: str
    torch_version: str


@message(frozen=True)
class Disabled:
    """The shim cannot protect this process and lets it run as it is."""

    reason: str


class Head(NamedTuple):
    """A head of a training loop. Two loops can share a boundary: one ends there, the other begins. `place`: as Standing.place."""

    boundary: int
    place: str


@message(frozen=True)
class ReplicaCheck:
    """Content digests of this rank's device state at one boundary: tensor path -> 16 hex digits."""

    boundary: int
    digests: dict[str, str] = field(default_factory=dict)
    ddp_paths: tuple[str, ...] = ()
    """Paths that a data parallel wrapper keeps equal on all ranks; counts where no later check exists yet.

    `PATH@0,2`: on these ranks. `PATH@=0,2`: nothing made them equal at the start, so they are if they were so at a check.
    """
    since: int = 0
    """From which boundary on paths mean the tensors that they mean now: the training loop began there, or another model's turn."""
    small: dict[str, str] = field(default_factory=dict)
    """The same of small buffers, which a journal holds: a rank need not have them in common with its replicas."""
    carried: tuple[str, ...] = ()
    """Paths of tensors that this rank copies at each head from here on, so that nobody else need hold the same."""
    place: str = ""
    """As Standing.place: what lies between two heads with one number may change tensors."""
    derived: tuple[str, ...] = ()
    """Paths of tensors that a forward has made of others, such as a normalized weight: another forward makes them anew."""
    fresh: tuple[str, ...] = ()
    """Where a loop begins: paths of tensors that this rank has not told of in the loop before."""
    renamed: dict[str, str] = field(default_factory=dict)
    """Of the other ones those that had another path there, with that path."""

    @property
    def at(self) -> Head:
        """Return the head where the digests were taken. Only digests of the same head can be compared."""
        return Head(self.boundary, self.place)

    @functools.cached_property
    def mark(self) -> int:
        """Return a number that is equal for ranks with equal digests at the same boundary."""
        return hash(
            (
                self.boundary,
                self.place,
                self.since,
                frozenset(self.digests.items()),
                self.ddp_paths,
                self.carried,
                self.derived,
                self.fresh,
                frozenset(self.renamed.items()),
            )
        )


@message(frozen=True)
class Standing:
    """This rank stands still, at a place from where it can be rewound, sent forward or left as it is.

    `position`: a `positions.StandingPosition`.
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
    place: str = ""
    """Which loop's boundary it is, where one training loop follows the other: two can have the same number."""
    left: str = ""
    """The same of the boundary at which the loop was left."""
    not_averaged: tuple[str, ...] = ()
    """Paths that a data parallel wrapper keeps equal on all ranks, but not in the latest update: it got other gradients."""
    has_before: bool = False
    """This rank has come to another training loop, and still gives what it had in the one before, by the names of that time."""


@message(frozen=True)
class QuiesceAnswer:
    """Answer to QuiesceAt: whether the boundary still lies ahead of this rank."""

    quiesce_id: int
    accepted: bool
    at_boundary: int


@message(frozen=True)
class Prepared:
    """The joiner has done the script's set-up and stands before its outermost training loop."""

    generation: int
    store_host: str
    store_port: int


@message(frozen=True)
class Serving:
    """A donor's tensor channel is open for the one peer that was named."""

    generation: int
    host: str
    port: int


@message(frozen=True)
class Transferred:
    """The joiner holds the recorded state; digests of all tensors agree with the source's.

    `differed`: in what the donors did not agree, so that all was taken from one of them; empty if they did.
    """

    generation: int
    size_bytes: int
    tensors: int
    elapsed_s: float
    differed: str = ""


@message(frozen=True)
class BytesDone:
    """How far this process is in what the migration's phase has it read or write. Told about once a second, if it takes so long."""

    generation: int
    done_bytes: int
    total_bytes: int


@message(frozen=True)
class Rebuilt:
    """The communicators of the new generation are connected."""

    generation: int
    elapsed_s: float


@message(frozen=True)
class Verified:
    """A collective over the new generation agreed on generation and boundary."""

    generation: int


@message(frozen=True)
class Resumed:
    """The script runs again. `steps_redone` is 1 where the step in flight is done again."""

    generation: int
    steps_redone: int


@message(frozen=True)
class FirstStep:
    """The first optimizer step of a generation is done."""

    generation: int
    boundary: int


@message(frozen=True)
class OrderFailed:
    """This process could not do what it was ordered to do for this generation."""

    generation: int
    order: str
    reason: str
    lasting: bool = False
    """Whether any other process would fail in the same way: the script or the journal makes the error, and no peer does."""
    unharmed: bool = False
    """Whether the rank holds what it held all the same: a file or folder could not be written."""


@message(frozen=True)
class ScriptFailed:
    """The script ended with an exception of its own, or with sys.exit(code). `ours`: with one that torchrelay has raised."""

    kind: str
    message: str
    exit_code: int
    boundary: int
    ours: bool = False


@message(frozen=True)
class Finishing:
    """The script reached its end; the process waits for MayFinish, since its state may still be needed."""

    boundary: int


@message(frozen=True)
class FaultInjected:
    """A fault of --inject is about to fire here."""

    fault: str
    boundary: int


@message(frozen=True)
class MigrationWanted:
    """The process itself asks to be moved (fault `planned`, SIGTERM in a pod)."""

    reason: str


@message(frozen=True)
class CheckpointSaved:
    generation: int
    size_bytes: int


@message(frozen=True)
class FilesKept:
    """All that KeepFile has sent is on disk."""

    generation: int


@message(frozen=True)
class AsideSet:
    """The answer to SetAside; `reason`: what could not be renamed, and why, or empty."""

    reason: str = ""


@message(frozen=True)
class Held:
    """The rank stands at the head of its loop, as `torchrelay check` wants, and goes no further."""

    boundary: int


@message(frozen=True)
class JournalsCopied:
    """The agent of `node` holds what it takes to replace this rank when its own node is lost; first at gate `boundary`."""

    node: str
    boundary: int


@message(frozen=True)
class JournalCopyLost:
    """Journals are copied to `node` no more: a loss of the rank's own node could not be survived now."""

    node: str
    reason: str


@message(frozen=True)
class CopyReady:
    """This rank's copy, taken at `boundary`, can be fetched by its buddy, who shows `token`."""

    boundary: int
    host: str
    port: int
    token: str


@message(frozen=True)
class CopyTaken:
    """This process holds the whole copy of `rank`; with a `reason` it could not fetch it."""

    rank: int
    boundary: int
    size_bytes: int
    reason: str = ""


@message(frozen=True)
class NumberAlarm:
    """`what` (see `numbers`) of the step that starts at `boundary` is suspect; `text` says why.

    Unless `action` is `alert`, the rank waits before its gate for NumbersDecided.
    """

    what: str
    boundary: int
    value: float
    mean: float
    action: str
    text: str


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
    | Unfit
    | CommunicationFailed
    | CheckpointSaved
    | BytesDone
    | Held
    | Explained
    | JournalsCopied
    | JournalCopyLost
    | CopyReady
    | CopyTaken
    | NumberAlarm
    | FilesKept
    | AsideSet
    | Rehearsed
    | Pong
)
