"""The just-in-time checkpoints that a run has made by itself: no more than a few, and none when it needs none."""

from __future__ import annotations

import re
import shutil
from collections.abc import Sequence
from pathlib import Path

from torchrelay.cli.restarting.choice import Saved
from torchrelay.protocol.names import MANIFEST

KEPT = 2
"""The one that ranks enter from, and the one before: it is there until the next one has proven to be of use."""


def own_checkpoints(jit_dir: Path, run_id: str) -> list[Saved]:
    """The whole ones, oldest first."""
    return [Saved(str(folder), step) for step, folder in _folders(jit_dir, run_id) if (folder / MANIFEST).is_file()]


def remove_old(jit_dir: Path, run_id: str, keep: int) -> None:
    """All of this run but the newest `keep`, and what was not finished. A folder that cannot be removed stays."""
    kept = {saved.directory for saved in _newest(own_checkpoints(jit_dir, run_id), keep)}
    for _, folder in _folders(jit_dir, run_id):
        if str(folder) not in kept:
            shutil.rmtree(folder, ignore_errors=True)
    if not keep:
        _remove_empty(jit_dir)


def _newest(saved: Sequence[Saved], count: int) -> Sequence[Saved]:
    return saved[-count:] if count else ()


def _folders(jit_dir: Path, run_id: str) -> list[tuple[int, Path]]:
    """With their steps, in the order in which they were made."""
    pattern = re.compile(rf"{re.escape(run_id)}(?:-again(\d+))?-step(\d+)")
    found = []
    for folder in jit_dir.iterdir() if jit_dir.is_dir() else ():
        if (match := pattern.fullmatch(folder.name)) and folder.is_dir() and not folder.is_symlink():
            found.append((int(match[1] or 0), int(match[2]), folder))
    return [(step, folder) for _, step, folder in sorted(found)]


def _remove_empty(folder: Path) -> None:
    if folder.is_dir() and not any(folder.iterdir()):
        folder.rmdir()
