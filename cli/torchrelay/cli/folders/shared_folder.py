"""Folders that the commands of several machines write to and remove."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path


def remove_if_empty(folder: Path) -> None:
    """Remove the folder if nothing is in it. Another machine's command may do the same at this moment."""
    with suppress(OSError):  # it is gone, or something is in it
        folder.rmdir()
