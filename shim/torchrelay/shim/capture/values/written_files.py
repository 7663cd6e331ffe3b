"""Carry files that the script has open for writing: a new process goes on at the end of the same file.

Left out are files that are read as well, since their place in them is state, and those that another file has replaced since.

Seen on Linux, where `/proc` names the file of a descriptor.
"""

from __future__ import annotations

import io
import os
from collections.abc import Callable
from typing import IO, Any, NamedTuple

_CLASSES = (io.TextIOWrapper, io.BufferedWriter, io.FileIO)


class FileForm(NamedTuple):
    path: str
    is_text: bool
    is_buffered: bool
    encoding: str | None = None
    errors: str | None = None
    line_buffering: bool = False

    def is_like(self, other: FileForm) -> bool:
        """Return whether both files are written to alike, wherever they lie: in a rehearsal a file is a copy of the real one."""
        return self._replace(path=other.path) == other

    def open(self, opens: Callable[..., IO[Any]]) -> IO[Any]:
        """Open the file at its end. `opens`: does what the builtin does. Raises OSError."""
        if self.is_text:
            buffering = 1 if self.line_buffering else -1
            return opens(self.path, "a", buffering, self.encoding, self.errors)
        return opens(self.path, "ab", -1 if self.is_buffered else 0)


def form_of(file: Any) -> FileForm | None:
    """Return what it takes to open the file again; None where that would not do."""
    raw = _raw(file)
    if raw is None:
        return None
    try:
        descriptor = raw.fileno()
        path = os.readlink(f"/proc/self/fd/{descriptor}")
        is_there = os.path.samestat(os.fstat(descriptor), os.stat(path))
    except (OSError, ValueError):
        return None
    if not is_there:
        return None
    if type(file) is io.TextIOWrapper:
        return FileForm(path, True, True, file.encoding, file.errors, file.line_buffering)
    return FileForm(path, False, type(file) is io.BufferedWriter)


def is_open_there(form: FileForm, there: Any) -> bool:
    """Return whether `there`, which may be anything, is the same file. In a joiner it may be a copy that has the file's name."""
    raw = _raw(there)
    return raw is not None and isinstance(raw.name, str) and os.path.realpath(raw.name) == form.path


def _raw(file: Any) -> io.FileIO | None:
    """Return the raw file below it, if it is open, and is only written to."""
    if type(file) not in _CLASSES or file.closed:
        return None
    while type(file) in (io.TextIOWrapper, io.BufferedWriter):
        file = file.buffer if type(file) is io.TextIOWrapper else file.raw
    return file if type(file) is io.FileIO and file.writable() and not file.readable() else None
