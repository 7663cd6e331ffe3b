"""Processes and machines that come, go and are kept ready."""

from __future__ import annotations

from torchrelay.protocol.messages.message import message


@message(frozen=True)
class WorkerEnded:
    """`rank` is -1 for a spare; `fenced`: torchrelay ended it."""

    worker: str
    rank: int
    exit_code: int
    signal: int
    fenced: bool


@message(frozen=True)
class SparesChanged:
    """How many spares there are to be, are ready, and are being made. `reason`: why no more are made, where there are too few."""

    wanted: int
    ready: int
    making: int
    reason: str


@message(frozen=True)
class SparesAsked:
    """Somebody (`by`) has asked for `count` spares more, on `node` if that is not empty; there are to be `wanted` from now on.

    In a cluster spares are pods, and `count` is below 0 where there are to be fewer.
    """

    count: int
    node: str
    wanted: int
    by: str


@message(frozen=True)
class DevicesUsed:
    """Which GPU each process of a node uses from now on: worker -> its UUID. What was told of the node before is over."""

    node: str
    gpus: dict[str, str]


@message(frozen=True)
class SpareMade:
    """A new spare was started. `in_place_of`: the worker that has ended there, or the GPU that was free; empty otherwise."""

    worker: str
    node: str
    in_place_of: str


@message(frozen=True)
class SpareDropped:
    """A spare came to nothing before anybody needed it."""

    worker: str
    reason: str


@message(frozen=True)
class ProcessRespawned:
    """A process is started in the place of a lost rank's: the `count`th within an hour, of `limit` that may be."""

    rank: int
    node: str
    boundary: int
    count: int
    limit: int


@message(frozen=True)
class FilesDiffer:
    """What the script imports from its folder is not the same on these two machines: no rank moves between them. Told once."""

    nodes: tuple[str, ...]
    reason: str


@message(frozen=True)
class NodeLost:
    """A node was given up as a whole: `ranks` are replaced elsewhere, its spares are gone."""

    node: str
    ranks: tuple[int, ...]
    spares: int
    reason: str


@message(frozen=True)
class JournalsKept:
    """From here on the rank survives the loss of its node: `node` has whole copies of its journals.

    `all_ranks`: so do all others.
    """

    rank: int
    node: str
    boundary: int
    all_ranks: bool
