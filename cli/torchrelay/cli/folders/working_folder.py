"""Copies of a script's working folder, in which it can be run without leaving anything behind."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from torchrelay.protocol.errors import UserError

MOST_BYTES = 200 << 20
_LEFT_OUT = {".git", ".hg", "__pycache__", "node_modules", ".mypy_cache", ".ruff_cache", ".pytest_cache"}


def copy(folder: Path, to: Path) -> None:
    """Copy the folder. Raises UserError if it is too large, or cannot be read."""
    check_size(folder)
    try:
        shutil.copytree(folder, to, symlinks=True, ignore=_ignored)
    except (OSError, shutil.Error) as e:
        raise UserError(f"the working folder {folder} cannot be copied: {e}; give another one with --workdir") from e


def in_copy(script: str, folder: Path, to: Path) -> str:
    """Return how to start a script in the copy.

    A script that lies in the folder is run from the copy: many look for files beside themselves.
    """
    path = (folder / script).absolute()
    if not path.is_relative_to(folder.absolute()):
        return str(path)
    return str(to / path.relative_to(folder.absolute())) if os.path.isabs(script) else script


def check_size(folder: Path) -> None:
    """Raise UserError if the folder is too large to be copied for each run."""
    total = 0
    for top, folders, files in os.walk(folder):
        folders[:] = sorted(set(folders) - _ignored(top, [*folders, *files]))
        for name in files:
            try:
                total += os.lstat(os.path.join(top, name)).st_size
            except FileNotFoundError:
                continue
        if total > MOST_BYTES:
            raise UserError(
                f"each run gets a copy of its working folder, and {folder} has more than {MOST_BYTES >> 20} MB: give --workdir a "
                "folder that has only what the script reads by relative paths (links to data are copied as links)"
            )


def _ignored(top: str, names: list[str]) -> set[str]:
    """Return caches and virtual environments: scripts hardly ever read them by a relative path."""
    environments = {n for n in names if os.path.exists(os.path.join(top, n, "pyvenv.cfg"))}
    return {n for n in names if n in _LEFT_OUT} | environments
