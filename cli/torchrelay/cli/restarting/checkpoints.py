"""The checkpoints of torchrelay's that a run has made: of just-in-time ones no more than a few, and none when it needs none."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from torchrelay.cli.folders.shared_folder import remove_if_empty
from torchrelay.cli.restarting.choice import Saved
from torchrelay.cli.restarting.life_sign import needed
from torchrelay.protocol.names import ASKED_FOR, MANIFEST

KEPT = 2
"""The one that ranks enter from, and the one before: it is there until the next one has proven to be of use."""
KEPT_OF_ALL_RUNS = 10
"""Whole ones that ended runs have left in a folder; older ones are removed."""
NOBODY_WRITES_S = 3600.0
"""A checkpoint without a manifest in which nothing was written for so long is never finished: saving takes ten minutes at most."""

_NAME = re.compile(rf"([0-9a-f]{{8}})(?:-again(\d+))?-step(\d+)({ASKED_FOR})?")
_OURS = re.compile(r"\.?(rank-\d+\..*|rank-\d+-tensors|collective-log.*|manifest\.json.*)")


def own_checkpoints(jit_dirs: Iterable[Path], run_id: str) -> list[Saved]:
    """Return the run's whole checkpoints, oldest first."""
    return [Saved(str(folder), step) for step, folder in _of_run(jit_dirs, run_id) if _is_whole(folder)]


def remove_old(jit_dirs: Sequence[Path], run_id: str, keep: int) -> None:
    """Remove all but the newest `keep` just-in-time checkpoints of this run, and unfinished ones.

    A folder that cannot be removed stays. Checkpoints that somebody asked for stay too.
    """
    whole = own_checkpoints(jit_dirs, run_id)
    made = [saved.directory for saved in whole if not saved.directory.endswith(ASKED_FOR)]
    kept = {saved.directory for saved in whole} - set(made) | set(made[-keep:] if keep else ())
    for _, folder in _of_run(jit_dirs, run_id):
        if str(folder) not in kept:
            shutil.rmtree(folder, ignore_errors=True)
    if not keep:
        for folder in jit_dirs:
            remove_if_empty(folder)


def remove_forgotten(jit_dirs: Iterable[Path], now_s: float) -> None:
    """Remove what finished runs have left: unfinished checkpoints, and all whole ones but the newest. `now_s`: time of day.

    A checkpoint that a living run needs, on any machine that shares the folder, is neither removed nor counted.
    """
    for jit_dir in jit_dirs:
        with contextlib.suppress(FileNotFoundError):  # another machine of the job does the same
            _remove_forgotten(jit_dir, now_s)


def _remove_forgotten(jit_dir: Path, now_s: float) -> None:
    runs, entered_from = needed(jit_dir, now_s)
    left = (found for found in _checkpoints(jit_dir) if found[0][0] not in runs)
    folders = [folder for _, folder in left if folder.name not in entered_from]
    whole = sorted(filter(_is_whole, folders), key=lambda folder: (folder / MANIFEST).stat().st_mtime)
    torn = [f for f in folders if not _is_whole(f) and now_s - _last_written_s(f) > NOBODY_WRITES_S]
    for folder in (*whole[:-KEPT_OF_ALL_RUNS], *torn):
        if all(_OURS.fullmatch(name) for name in os.listdir(folder)):
            shutil.rmtree(folder, ignore_errors=True)


def _is_whole(folder: Path) -> bool:
    return (folder / MANIFEST).is_file()


def _last_written_s(folder: Path) -> float:
    return max(path.lstat().st_mtime for path in (folder, *folder.rglob("*")))


def _of_run(jit_dirs: Iterable[Path], run_id: str) -> list[tuple[int, Path]]:
    """Return the run's checkpoints with their steps, in the order in which they were made."""
    found = [found for jit_dir in jit_dirs for found in _checkpoints(jit_dir) if found[0][0] == run_id]
    return [(step, folder) for (_, _, step), folder in sorted(found)]


def _checkpoints(jit_dir: Path) -> Iterator[tuple[tuple[str, int, int], Path]]:
    """Yield each checkpoint with its run, how often that run had been started again, and the step."""
    for folder in sorted(jit_dir.iterdir()) if jit_dir.is_dir() else ():
        if (match := _NAME.fullmatch(folder.name)) and folder.is_dir() and not folder.is_symlink():
            yield (match[1], int(match[2] or 0), int(match[3])), folder
