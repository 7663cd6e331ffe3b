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
