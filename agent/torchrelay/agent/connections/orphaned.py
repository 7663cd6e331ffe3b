"""What a node does when its controller has been away for too long: as torchrun would, so that no job hangs. Pure."""

from __future__ import annotations

import signal
from collections.abc import Collection, Iterable
from dataclasses import dataclass

from torchrelay.protocol.messages import StopJob
from torchrelay.protocol.names import WorkerId


@dataclass(frozen=True)
class Holder:
    """A process that holds a rank. `exit_code` is None while it lives."""

    worker: WorkerId
    rank: int
    exit_code: int | None


@dataclass(frozen=True)
class OrphanVerdict:
    """Who may leave, and whether the node ends."""

    may_finish: tuple[WorkerId, ...]
    stop: StopJob | None


def judge(holders: Iterable[Holder], finishing: Collection[WorkerId]) -> OrphanVerdict:
    """Ranks at their end may leave; a failed rank ends the node, and so does the last one that leaves."""
    holders = list(holders)
    failed = next((h for h in holders if h.exit_code), None)
    living = [h for h in holders if h.exit_code is None]
    stop = None
    if failed is not None:
        stop = StopJob(failed.exit_code or 1, signal.SIGTERM, f"rank {failed.rank} failed and no controller is there")
    elif holders and not living:
        stop = StopJob(0, signal.SIGTERM, "all ranks are done and no controller is there")
    return OrphanVerdict(tuple(h.worker for h in living if h.worker in finishing), stop)
