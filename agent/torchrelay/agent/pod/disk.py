"""Looks up files for the controller, beside everything else, since some of them are on slow disks."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from torchrelay.agent.folders import folder_for
from torchrelay.agent.journals.kept_copies import kept_copies
from torchrelay.agent.pod.checkpoints import checkpoint_files, find_checkpoints
from torchrelay.protocol.messages import FetchCheckpoint, FetchKept, FindCheckpoints

ON_DISK = (FetchCheckpoint, FindCheckpoints, FetchKept)
"""Orders that `Disk` carries out."""


class Disk:
    """The files of a pod. `send`: to the controller.

    `kept`: where this pod's processes keep copies of ranks' states, in a folder for each time that the job has begun again.
    `count`: the file with the number of these times, for an agent after this one too.
    """

    def __init__(self, send: Callable[[Any], None], kept: Path, count: Path) -> None:
        self._send = send
        self._kept = kept
        self._count_file = count
        self._tasks: set[asyncio.Task[None]] = set()
        self._count = 0
        with contextlib.suppress(OSError, ValueError):
            self._count = int(count.read_text())

    @property
    def kept(self) -> Path:
        """The folder of copies for processes that begin now."""
        return self._kept / str(self._count)

    def make_room_for(self, user: int) -> None:
        """Make the folder where processes of `user` keep copies, if they are to keep any. Raises UserError."""
        if user != os.getuid() and self._kept.is_dir():
            folder_for(user, self.kept)

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
            return [find_checkpoints(Path(order.directory), order.job)]
        return kept_copies(self.kept)

    def job_begins_again(self) -> None:
        """Count on to the next folder of copies, since their steps may be counted otherwise from here on.

        A process that makes copies may live still. What it writes from now on is not read.
        """
        self._count += 1
        with contextlib.suppress(OSError):
            self._count_file.write_text(str(self._count))

    def process_begins(self) -> None:
        """Remove the copies from before the job began again: the process that begins needs the memory."""
        for folder in self._kept.glob("*"):
            if folder != self.kept:
                shutil.rmtree(folder, ignore_errors=True)
