"""Folders that nobody else may look into, and that outlast a crash. Standard library only."""

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


def names_to_disk(folder: Path) -> None:
    """What was made, renamed or removed in it is so after a power failure, too. Raises OSError."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
