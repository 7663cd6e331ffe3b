"""Folders that hold what only the user may see: the socket, and journals in shared memory."""

from __future__ import annotations

import os
from pathlib import Path

from torchrelay.protocol.errors import UserError


def private_folder(path: Path) -> None:
    """Makes the folder. Raises UserError if it cannot be made, or is there already and open to others.

    /tmp and /dev/shm are everyone's: another user may have made the folder before, to read along.
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
    """Makes the folder, in which `user` writes what this one reads and removes; in a pod's own volume alone, since it is closed
    to nobody. Raises UserError if it cannot be made, or is a third one's."""
    try:
        path.mkdir(exist_ok=True)
        found = path.lstat()
        if found.st_uid == os.getuid() and not path.is_symlink():
            path.chmod(0o777)
    except OSError as e:
        raise UserError(f"the folder {path} cannot be made: {e}") from e
    if path.is_symlink() or found.st_uid not in (os.getuid(), user):
        raise UserError(f"{path} is of user {found.st_uid}, neither the agent's nor that of the training process")
