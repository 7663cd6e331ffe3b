"""Reads what the training processes write to shared memory: progress, and journals, also after their death."""

from __future__ import annotations

import logging
import shutil
from contextlib import suppress
from pathlib import Path

from torchrelay.agent.folders import private_folder
from torchrelay.agent.health.process import process_state
from torchrelay.protocol.errors import JournalError
from torchrelay.protocol.journal import read_journal, read_progress
from torchrelay.protocol.messages import JournalContent, WorkerProgress
from torchrelay.protocol.names import WorkerId

log = logging.getLogger(__name__)


class JournalKeeper:
    """One folder per worker below `folder`."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._workers: list[WorkerId] = []
        self._unreadable: set[WorkerId] = set()

    def create(self, worker: WorkerId) -> None:
        """Raises UserError where a folder of another user is in the way."""
        private_folder(self._folder)
        private_folder(self._folder / worker)
        self._workers.append(worker)

    def progress(self, worker: WorkerId, pid: int) -> WorkerProgress:
        """What the worker and the kernel say now; boundary -1 in phase `set-up` before the worker has written any."""
        state = process_state(pid)
        try:
            record = read_progress(self._folder / worker)
        except (JournalError, OSError) as e:
            record = None
            if worker not in self._unreadable:
                self._unreadable.add(worker)
                log.warning("%s: its progress cannot be read: %s", worker, e)
        if record is None:
            return WorkerProgress(worker, -1, 0, "set-up", False, 0, state)
        return WorkerProgress(
            worker, record.boundary, record.gates_passed, record.phase, record.waiting, record.count, state
        )

    def content(self, worker: WorkerId) -> JournalContent:
        """All whole journals of the worker; empty where there are none."""
        try:
            boundaries, gates, set_up = read_journal(self._folder / worker)
        except OSError as e:
            log.warning("%s: its journal cannot be read: %s", worker, e)
            return JournalContent(worker)
        return JournalContent(worker, boundaries, gates, set_up)

    def remove(self) -> None:
        """The shared memory of this node's workers goes back to the system."""
        for worker in self._workers:
            shutil.rmtree(self._folder / worker, ignore_errors=True)
        with suppress(OSError):  # another node's agent on this machine still has its own there
            self._folder.rmdir()
