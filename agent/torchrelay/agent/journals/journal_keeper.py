"""Reads what the training processes write to shared memory (progress, and journals), also after their death."""

from __future__ import annotations

import logging
import os
import shutil
from pathlib import Path

from torchrelay.agent.folders import folder_for, private_folder
from torchrelay.protocol.errors import JournalError
from torchrelay.protocol.journals.journal import AFTER, ProgressReader, ProgressRecord, read_journal, read_slot
from torchrelay.protocol.messages import JournalContent
from torchrelay.protocol.names import WorkerId

log = logging.getLogger(__name__)


class JournalKeeper:
    """The journals of one place. Each worker has a folder below `folder`."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._readers: dict[WorkerId, ProgressReader] = {}
        self._unreadable: set[WorkerId] = set()

    def create(self, worker: WorkerId) -> None:
        """Make a worker's folder. Raises UserError where a folder of another user is in the way."""
        private_folder(self._folder)
        self._create(worker, os.getuid())

    def create_for(self, worker: WorkerId, user: int) -> None:
        """Make a worker's folder in a volume of the pod's own, where processes may be of several users. `user`: the worker's.

        Raises UserError.
        """
        folder_for(user, self._folder)
        self._create(worker, user)

    def _create(self, worker: WorkerId, user: int) -> None:
        if user == os.getuid():
            private_folder(self._folder / worker)
        else:
            folder_for(user, self._folder / worker)
        self._readers[worker] = ProgressReader(self._folder / worker)

    def progress(self, worker: WorkerId) -> ProgressRecord | None:
        """Return what the worker has written last; None as long as nothing can be read."""
        try:
            return self._readers[worker].read() if worker in self._readers else None
        except (JournalError, OSError) as e:
            if worker not in self._unreadable:
                self._unreadable.add(worker)
                log.warning("%s: its progress cannot be read: %s", worker, e)
            return None

    def content(self, worker: WorkerId) -> JournalContent:
        """Return all whole journals of the worker; empty where there are none."""
        try:
            boundaries, gates, set_up = read_journal(self._folder / worker)
            after = read_slot(self._folder / worker / AFTER)
        except OSError as e:
            log.warning("%s: its journal cannot be read: %s", worker, e)
            return JournalContent(worker)
        return JournalContent(worker, boundaries, gates, set_up, dict([after] if after else ()))

    def forget(self, worker: WorkerId) -> None:
        """Remove the folder of a worker that has ended: its shared memory goes back to the system."""
        if (reader := self._readers.pop(worker, None)) is not None:
            reader.close()
        shutil.rmtree(self._folder / worker, ignore_errors=True)

    def remove(self) -> None:
        """Remove the folders of this node's workers: their shared memory goes back to the system.

        `folder` itself stays: the command holds a lock on it, and a job that is started anew has its next journals there.
        """
        for worker, reader in self._readers.items():
            reader.close()
            shutil.rmtree(self._folder / worker, ignore_errors=True)
