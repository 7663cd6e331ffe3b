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
from torchrelay.shim.set_up.asked_paths import by_script, canonical, is_path, on_main_thread

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
        written_archives.watch(lambda path: self._note(path, writes=True))
        os.register_at_fork(after_in_child=self._end)

    def _end(self) -> None:
        self._diversions.end()
        self._is_on = False

    def _note(self, path: Any, *, writes: bool, extends: bool = False, updates: bool = False) -> None:
        if not (self._is_on and is_path(path) and on_main_thread() and self._takes_part()):
            return
        if not by_script(sys._getframe(2)):
            return
        try:
            name = canonical(path)
            if name.startswith(_NO_FILES):
                return
            was_new = self._files.is_new
            if updates:
                self._files.updates(name)
            elif writes:
                self._files.writes(name, extends=extends)
            elif self._files.may_be_kept_open(name) and _is_kept_open(name):
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
                if mode[:1] == "r" and "+" not in mode:
                    self._note(file, writes=False)
                else:
                    updates = "+" in mode and "w" not in mode
                    self._note(file, writes=True, extends="a" in mode, updates=updates)
            return original(file, mode, *args, **options)

        return open

    def _os_open(self, original: Call) -> Call:
        def open(path: Any, flags: Any, *args: Any, **options: Any) -> Any:
            if type(flags) is int and options.get("dir_fd") is None and not flags & os.O_DIRECTORY:
                access = flags & os.O_ACCMODE
                keeps = not flags & os.O_TRUNC
                self._note(path, writes=access != os.O_RDONLY, extends=keeps, updates=keeps and access == os.O_RDWR)
            return original(path, flags, *args, **options)

        return open

    def _renaming(self, original: Call) -> Call:
        def rename(src: Any, dst: Any, **options: Any) -> Any:
            self._note(dst, writes=True)
            return original(src, dst, **options)

        return rename


def _is_kept_open(path: str) -> bool:
    """Return whether this process has the file open to write."""
    with io.FileIO(path) as file:
        return bool(open_elsewhere(file.fileno()))
