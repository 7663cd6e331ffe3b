"""Folders that nobody else may look into, and that outlast a crash. Standard library only.

In a pod, agent and training process can run as two users, neither of which may become the other. Then the agent makes the folders
that both use, in a volume that nobody else mounts. A process that finds such a folder to be another user's lets that user read and
remove what is in it.
"""

from __future__ import annotations

import os
from pathlib import Path


def make_private(folder: Path) -> None:
    """Make the folder and all missing parents, each of them private. Raises OSError.

    `mkdir(parents=True)` would not give its `mode` to the parents.
    """
    missing = [folder]
    for parent in folder.parents:
        if parent.exists():
            break
        missing.append(parent)
    for path in reversed(missing):
        path.mkdir(mode=0o700, exist_ok=True)


def is_anothers(folder: Path) -> bool:
    """Return whether the folder is there and belongs to another user. Raises OSError."""
    return folder.exists() and folder.stat().st_uid != os.geteuid()


def make_below(root: Path, folder: Path) -> None:
    """Make `folder`, which is `root` or below it. Raises OSError.

    It is private; if `root` belongs to another user, both users may use it.
    """
    if not is_anothers(root):
        make_private(folder)
        return
    for path in reversed([folder, *folder.parents[: len(folder.relative_to(root).parts)]]):
        if not path.exists():
            path.mkdir(exist_ok=True)
            path.chmod(0o777)  # the other one must be able to remove what is in it


def open_below(root: Path, path: Path) -> int:
    """Return a descriptor for reading and writing the file, and make the file if it is missing. Raises OSError.

    If `root` belongs to another user, that user may read the file.
    """
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        if is_anothers(root):
            os.fchmod(descriptor, 0o644)  # whatever the umask is
    except OSError:
        os.close(descriptor)
        raise
    return descriptor


def names_to_disk(folder: Path) -> None:
    """Make sure that what was made, renamed or removed in the folder stays so after a power failure. Raises OSError."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
