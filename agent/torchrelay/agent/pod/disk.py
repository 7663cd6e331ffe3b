"""What the controller wants to know of files: looked up beside everything else, since some of them are on slow disks."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from torchrelay.agent.pod.checkpoints import checkpoint_files, find_checkpoints
from torchrelay.protocol.kept import whole_copies
from torchrelay.protocol.messages import FetchCheckpoint, FetchKept, FindCheckpoints, KeptCopies, KeptCopy

ON_DISK = (FetchCheckpoint, FindCheckpoints, FetchKept)
"""Orders that `Disk` carries out."""


class Disk:
    """`send`: to the controller. `kept`: where this pod's processes keep copies of ranks' states."""

    def __init__(self, send: Callable[[Any], None], kept: Path) -> None:
        self._send, self._kept = send, kept
        self._tasks: set[asyncio.Task[None]] = set()
        self._outdated = False

    def ordered(self, order: FetchCheckpoint | FindCheckpoints | FetchKept) -> None:
        task = asyncio.ensure_future(self._tell(order))
        self._tasks.add(task)  # the loop itself holds on to no task
        task.add_done_callback(self._tasks.discard)

    async def _tell(self, order: FetchCheckpoint | FindCheckpoints | FetchKept) -> None:
        for part in await asyncio.to_thread(self._look, order):
            self._send(part)

    def _look(self, order: FetchCheckpoint | FindCheckpoints | FetchKept) -> Iterable[Any]:
        if isinstance(order, FetchCheckpoint):
            return checkpoint_files(Path(order.directory))
        if isinstance(order, FindCheckpoints):
            return [find_checkpoints(Path(order.directory))]
        return kept_copies(self._kept)

    def job_begins_again(self) -> None:
        """Copies are of steps that may be counted otherwise from here on; who makes them still lives for a moment."""
        self._outdated = True

    def process_begins(self) -> None:
        if self._outdated:
            for folder in self._kept.glob("*"):
                shutil.rmtree(folder, ignore_errors=True)
            self._outdated = False


def kept_copies(folder: Path) -> list[KeptCopies]:
    """What is kept below `folder`, one message for each copy, and the last one without."""
    found = [
        KeptCopies(
            (KeptCopy(rank, parts.boundary, str(path), parts.journal, parts.set_up, parts.ddp_layout),), last=False
        )
        for rank, copies in whole_copies(folder).items()
        for path, parts in copies
    ]
    return [*found, KeptCopies()]
