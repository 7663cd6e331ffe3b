"""Folders that nobody else may look into, and that outlast a crash. Standard library only.

In a pod, agent and training process can be of two users, neither of which may become the other. Then the agent makes the folders
that both use, in a volume that nobody else mounts: whoever finds such a folder to be another user's lets that one read, and remove,
what is in it.
"""

from __future__ import annotations

import os
from pathlib import Path


def make_private(folder: Path) -> None:
    """Makes it, with all parents that are missing: `mode` of `mkdir(parents=True)` is not that of the parents. Raises OSError."""
    missing = [folder]
    for parent in folder.parents:
        if parent.exists():
            break
        missing.append(parent)
    for path in reversed(missing):
        path.mkdir(mode=0o700, exist_ok=True)


def is_anothers(folder: Path) -> bool:
    """Whether another user has made it for this one. Raises OSError."""
    return folder.exists() and folder.stat().st_uid != os.geteuid()


def make_below(root: Path, folder: Path) -> None:
    """Makes `folder`, which is `root` or below it: private, or for both where `root` is another user's. Raises OSError."""
    if not is_anothers(root):
        make_private(folder)
        return
    for path in reversed([folder, *folder.parents[: len(folder.relative_to(root).parts)]]):
        if not path.exists():
            path.mkdir(exist_ok=True)
            path.chmod(0o777)  # the other one must be able to remove what is in it


def open_below(root: Path, path: Path) -> int:
    """A descriptor of the file, for reading and writing; made if it is not there, as `make_below` makes folders. Raises OSError."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        if is_anothers(root):
            os.fchmod(descriptor, 0o644)  # whatever the umask is
    except OSError:
        os.close(descriptor)
        raise
    return descriptor


def names_to_disk(folder: Path) -> None:
    """What was made, renamed or removed in it is so after a power failure, too. Raises OSError."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
