"""Paths that set-up asks for: under which name they are known, and who asks."""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Collection
from pathlib import Path
from typing import Any

_FOLDERS = 4096
_folders: dict[str, str] = {}
"""Where folders really are: to follow links takes a system call for each part of a path."""


def canonical(path: Any) -> str:
    """Return the name under which a path is known: links on the way to it are followed, but not the path itself."""
    folder, name = os.path.split(os.path.abspath(os.fsdecode(path)))
    real = _folders.get(folder)
    if real is None:
        if len(_folders) >= _FOLDERS:
            _folders.clear()
        real = _folders[folder] = os.path.realpath(folder)
    return os.path.join(real, name)


def folders_changed() -> None:
    """Forget canonical names: links or folders were made, removed or renamed."""
    _folders.clear()


def is_within(name: str, folder: str) -> bool:
    """Return whether a name is the folder's, or lies below it."""
    return name == folder or name.startswith(folder + os.sep)


def is_at_or_below(name: str, folders: Collection[str]) -> bool:
    """Return whether one of these is the name itself, or a folder around it."""
    return any(folder in folders for folder in (name, *map(str, Path(name).parents)))


def is_path(path: Any) -> bool:
    return isinstance(path, (str, bytes, os.PathLike))


def on_main_thread() -> bool:
    return threading.get_ident() == threading.main_thread().ident


def by_script(frame: Any) -> bool:
    """Return whether the script asks in the frame of what is diverted: not where the import system asks, or we do."""
    while frame is not None and str(frame.f_globals.get("__name__", "")).startswith(_DIVERTED_IN):
        frame = frame.f_back
    return frame is not None and not str(frame.f_globals.get("__name__", "")).startswith(
        ("torchrelay.", "importlib.", "zipimport")
    )


_DIVERTED_IN = (
    "torchrelay.shim.set_up.files_seen",
    "torchrelay.shim.set_up.files_told",
    "torchrelay.shim.set_up.scratch_files",
    "torchrelay.shim.set_up.files_of_training",
    "torchrelay.shim.adapters.checkpoints.written_archives",
    "torchrelay.shim.adapters.cpython.diverted",
)


def not_found(path: Any) -> FileNotFoundError:
    return FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
