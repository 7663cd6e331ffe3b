"""Folders that only the user may look into: the socket's, and that of journals in shared memory."""

from __future__ import annotations

import os
from pathlib import Path

from torchrelay.protocol.errors import UserError


def private_folder(path: Path) -> None:
    """Make the folder. Raises UserError if it cannot be made, or exists already and is open to others.

    /tmp and /dev/shm are open to everyone: another user may have made the folder before, to read along.
    """
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        path.mkdir(mode=0o700, exist_ok=True)
        found = path.lstat()
    except OSError as e:
        raise UserError(f"the folder {path} cannot be made: {e}") from e
    if path.is_symlink() or found.st_uid != os.getuid() or found.st_mode & 0o077:
        raise UserError(f"{path} must be a folder that belongs to you and is closed to others (chmod 700)")


def folder_for(user: int, path: Path) -> None:
    """Make the folder, in which `user` writes files that this process's user reads and removes.

    The folder is open to everyone: use it only in a pod's own volume. Raises UserError if it cannot be made, or belongs to a third
    user.
    """
    try:
        path.mkdir(exist_ok=True)
        found = path.lstat()
        if found.st_uid == os.getuid() and not path.is_symlink():
            path.chmod(0o777)
    except OSError as e:
        raise UserError(f"the folder {path} cannot be made: {e}") from e
    if path.is_symlink() or found.st_uid not in (os.getuid(), user):
        raise UserError(f"{path} is of user {found.st_uid}, neither the agent's nor that of the training process")
