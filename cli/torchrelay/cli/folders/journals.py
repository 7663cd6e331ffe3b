"""The folder of a run's journals: one run's at a time, whatever state folder its command was given."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from torchrelay.protocol.errors import UserError
from torchrelay.protocol.machine.owned_folder import lock_folder, remove_left
from torchrelay.protocol.machine.scratch import SCRATCH, is_scratch, temporary_folder
from torchrelay.protocol.names import TEMPORARY_PREFIX

MEMORY = Path("/dev/shm")


def journal_folder(name: str, run_folder: Path) -> Path:
    """Return the folder for the run's journals: in memory, if the machine has that."""
    if os.access(MEMORY, os.W_OK):
        return MEMORY / f"{_prefix()}{name}"
    return run_folder / "journal"


def _prefix() -> str:
    return f"torchrelay-{os.getuid()}-"


def remove_what_is_left() -> None:
    """Remove what killed commands of this user have left, whatever their state folders were."""
    remove_left(MEMORY, _prefix())
    remove_left(Path(tempfile.gettempdir()), TEMPORARY_PREFIX)
    for place in {tempfile.gettempdir(), temporary_folder(os.environ)}:
        remove_left(Path(place), SCRATCH, is_scratch)  # of ranks that were taking over, whose agents were killed, too


@contextmanager
def own_journals(name: str, run_folder: Path) -> Iterator[None]:
    """Hold the folder of journals: empty at first, and removed at the end.

    What an earlier run of this name has left there would be taken for this run's journals.
    Raises UserError if it cannot be made, or while another run has it.
    """
    folder = journal_folder(name, run_folder)
    try:
        lock = lock_folder(folder)
    except OSError as e:
        raise UserError(f"the folder {folder} for journals cannot be made: {e}") from e
    if lock is None:
        raise UserError(
            f"this machine runs the job {name} already, with another state folder: give each job a secret of its own, "
            "and each machine its own --node-rank"
        )
    try:
        empty_journals(name, run_folder)
        yield
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        os.close(lock)


def empty_journals(name: str, run_folder: Path) -> None:
    """Empty the folder before an agent begins: a killed agent's files would be taken for those of the new one's processes."""
    for left in journal_folder(name, run_folder).iterdir():
        shutil.rmtree(left, ignore_errors=True)


def remove_journals(name: str, run_folder: Path) -> None:
    """Remove the journals of a dead run, unless another run has the folder."""
    with suppress(OSError):
        if (lock := lock_folder(journal_folder(name, run_folder))) is not None:
            shutil.rmtree(journal_folder(name, run_folder), ignore_errors=True)
            os.close(lock)
