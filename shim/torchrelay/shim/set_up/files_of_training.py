"""Which files training opens, for those that it writes and reads again.

What C code opens by itself (databases, HDF5) is not seen, but for `torch.save`. Other threads and processes are not meant: what
they write is in no step.
"""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Callable
from typing import Any

from torchrelay.protocol.errors import UnsupportedError
from torchrelay.shim.adapters.checkpoints import written_archives
from torchrelay.shim.adapters.cpython.diverted import Diversions
from torchrelay.shim.capture.state.training_files import TrainingFiles, open_elsewhere
from torchrelay.shim.set_up.asked_paths import by_script, canonical, is_path

Call = Callable[..., Any]
_NO_FILES = ("/proc/", "/sys/", "/dev/")


class FilesOfTraining:
    """Tells `files` from `begin` on what the script's main thread opens."""

    def __init__(self, files: TrainingFiles, takes_part: Callable[[], bool], tell: Callable[[], None]) -> None:
        """Prepare. `takes_part`: returns whether the rank is protected. `tell`: called when a first such use is seen."""
        self._files = files
        self._takes_part = takes_part
        self._tell = tell
        self._diversions = Diversions()
        self._is_on = False

    def begin(self) -> None:
        """Begin, or go on. Where this Python is built otherwise nothing is told."""
        if self._is_on:
            return
        self._is_on = True
        diverted: dict[Any, Callable[[Call], Call]] = {
            io.open: self._open,
            os.open: self._os_open,
            os.rename: self._renaming,
            os.replace: self._renaming,
        }
        try:
            for function, make in diverted.items():
                self._diversions.divert(function, make)
        except UnsupportedError:
            self._diversions.end()
            return
        written_archives.watch(lambda path: self._note(path))
        os.register_at_fork(after_in_child=self._end)

    def _end(self) -> None:
        self._diversions.end()
        self._is_on = False

    def _opened(self, path: Any, descriptor: Callable[[], int]) -> None:
        """Note what was opened to read. It may be data that is read file by file, so no more is asked than has to be."""
        if not (self._is_on and is_path(path) and self._takes_part()):
            return
        files = self._files
        try:
            if files.opens_to_read(os.fspath(path)) or files.may_have_changed(os.fstat(descriptor()).st_mtime_ns):
                self._note(path, reads=True)
        except (OSError, ValueError):
            return

    def _note(self, path: Any, *, reads: bool = False, extends: bool = False, updates: bool = False) -> None:
        if not (self._is_on and is_path(path) and self._takes_part() and by_script(sys._getframe(2))):
            return
        try:
            name = canonical(path)
            if name.startswith(_NO_FILES):
                return
            was_new = self._files.is_new
            if updates:
                self._files.updates(name)
            elif not reads:
                self._files.writes(name, extends=extends)
            elif not self._files.is_known(name) and _is_kept_open(name):
                self._files.reads_while_written(name)
            else:
                self._files.reads(name)
        except (OSError, ValueError):
            return  # a path that cannot be told: the script is told
        if self._files.is_new and not was_new:
            self._tell()

    def _open(self, original: Call) -> Call:
        def open(file: Any, mode: Any = "r", *args: Any, **options: Any) -> Any:
            if type(mode) is str and type(file) is not int:
                if "r" in mode and "+" not in mode:
                    opened = original(file, mode, *args, **options)
                    self._opened(file, opened.fileno)
                    return opened
                self._note(file, extends="a" in mode, updates="+" in mode and "w" not in mode)
            return original(file, mode, *args, **options)

        return open

    def _os_open(self, original: Call) -> Call:
        def open(path: Any, flags: Any, *args: Any, **options: Any) -> Any:
            if type(flags) is int and options.get("dir_fd") is None and not flags & os.O_DIRECTORY:
                access = flags & os.O_ACCMODE
                keeps = not flags & os.O_TRUNC
                if access == os.O_RDONLY:
                    opened = original(path, flags, *args, **options)
                    self._opened(path, lambda: opened)
                    return opened
                self._note(path, extends=keeps, updates=keeps and access == os.O_RDWR)
            return original(path, flags, *args, **options)

        return open

    def _renaming(self, original: Call) -> Call:
        def rename(src: Any, dst: Any, **options: Any) -> Any:
            self._note(dst)
            return original(src, dst, **options)

        return rename


def _is_kept_open(path: str) -> bool:
    """Return whether this process has the file open to write."""
    with io.FileIO(path) as file:
        return bool(open_elsewhere(file.fileno()))
