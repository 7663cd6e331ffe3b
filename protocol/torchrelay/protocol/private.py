"""Folders that nobody else may look into. Standard library only."""

from __future__ import annotations

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
