"""Folders that belong to a process. It holds a lock on each, so that what a killed process has left can be told and removed."""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from torchrelay.protocol.names import TEMPORARY_PREFIX

_NEW_S = 60.0
"""An empty folder may be one that its maker has not locked yet. Makers put nothing into it before that."""


class OwnedFolder:
    """A new temporary folder. A forked child shares the lock: the folder is owned while either of the two lives."""

    def __init__(self, purpose: str) -> None:
        """Make the folder. Raises OSError if there is no room for one."""
        self.path = Path(tempfile.mkdtemp(prefix=f"{TEMPORARY_PREFIX}{purpose}-"))
        self._lock = lock_folder(self.path)

    def remove(self) -> None:
        """Remove the folder with all that is in it, as far as possible."""
        shutil.rmtree(self.path, ignore_errors=True)
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None


@contextmanager
def owned_folder(purpose: str) -> Iterator[Path]:
    """Yield a new temporary folder, and remove it at the end. Raises OSError."""
    folder = OwnedFolder(purpose)
    try:
        yield folder.path
    finally:
        folder.remove()


def lock_folder(folder: Path) -> int | None:
    """Make the folder if it is missing, and lock it.

    Returns a descriptor that holds the lock until it is closed or its process is gone; None if another process holds the lock.
    Raises OSError.
    """
    while True:
        folder.mkdir(mode=0o700, exist_ok=True)
        lock = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if os.path.samestat(os.fstat(lock), folder.lstat()):
                return lock
        except BlockingIOError:
            os.close(lock)
            return None
        except FileNotFoundError:
            pass
        os.close(lock)  # whoever had it has removed it since


def remove_left(parent: Path, prefix: str, is_ours: Callable[[str], bool] = lambda name: True) -> None:
    """Remove this user's folders below `parent` whose names begin with `prefix` and that no living process holds.

    `is_ours`: checks the rest of the name, where the beginning alone does not say enough.
    """
    with suppress(OSError):
        for folder in parent.glob(f"{prefix}*"):
            with suppress(OSError):
                if is_ours(folder.name) and _may_be_left(folder) and (lock := lock_folder(folder)) is not None:
                    shutil.rmtree(folder, ignore_errors=True)
                    os.close(lock)


def _may_be_left(folder: Path) -> bool:
    if folder.is_symlink() or not folder.is_dir() or folder.stat().st_uid != os.getuid():
        return False
    return any(folder.iterdir()) or time.time() - folder.stat().st_mtime > _NEW_S
