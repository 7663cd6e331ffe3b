"""The folder of a run's journals: one run's at a time, whatever state folder its command was given."""

from __future__ import annotations

import fcntl
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from torchrelay.protocol.errors import UserError

MEMORY = Path("/dev/shm")


def journal_folder(name: str, run_folder: Path) -> Path:
    """In memory where the machine has that."""
    if os.access(MEMORY, os.W_OK):
        return MEMORY / f"torchrelay-{os.getuid()}-{name}"
    return run_folder / "journal"


@contextmanager
def own_journals(name: str, run_folder: Path) -> Iterator[None]:
    """Empty at first, since what an earlier run of this name has left there would be taken for this one's, and gone at the end.

    Raises UserError if it cannot be made, or while another run has it.
    """
    folder = journal_folder(name, run_folder)
    try:
        lock = _lock(folder)
    except OSError as e:
        raise UserError(f"the folder {folder} for journals cannot be made: {e}") from e
    if lock is None:
        raise UserError(
            f"this machine runs the job {name} already, with another state folder: give each job a secret of its own, "
            "and each machine its own --node-rank"
        )
    try:
        for left in folder.iterdir():
            shutil.rmtree(left, ignore_errors=True)
        yield
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        os.close(lock)


def remove_journals(name: str, run_folder: Path) -> None:
    """What a run that is dead has left; nothing if another one has the folder."""
    with suppress(OSError):
        if (lock := _lock(journal_folder(name, run_folder))) is not None:
            shutil.rmtree(journal_folder(name, run_folder), ignore_errors=True)
            os.close(lock)


def _lock(folder: Path) -> int | None:
    """A descriptor that holds the folder until it is closed, or its process is gone; None if somebody else has one."""
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
