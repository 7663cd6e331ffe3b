"""Carry files that training reads: where the next read begins is state, as an iterator's place is.

A process that has no such file opens it by the name of the lost rank's. Seen on Linux, where `/proc` names a descriptor's file.
"""

from __future__ import annotations

import bz2
import functools
import gzip
import io
import lzma
import os
import zlib
from collections.abc import Callable
from typing import IO, Any, NamedTuple

from torchrelay.shim.adapters.cpython import file_places
from torchrelay.shim.capture.values.by_value import MOST_BYTES

_PIECE_BYTES = 4 << 10
_PIECES = 256
"""Of a large file in memory so many pieces are looked at, which lie evenly across it."""
IN_MEMORY = (io.BytesIO, io.StringIO)
_PACKED: tuple[Any, ...] = (gzip.GzipFile, bz2.BZ2File, lzma.LZMAFile)
_PLAIN = (io.FileIO, io.BufferedReader, io.BufferedRandom)
_MODULES = frozenset({"_io", "io", "gzip", "bz2", "lzma", "zipfile"})


class FilePlace(NamedTuple):
    """`place`: where the next read begins; None for a closed file. `content`: of a small file in memory.

    `mark`: of what a file holds that may be written to as well, and is not carried; None of any other file.
    """

    place: int | None
    content: bytes | str | None = None
    mark: tuple[int, int] | None = None


class ReadForm(NamedTuple):
    """What it takes to open a file again. `newline`: as the builtin `open` takes it."""

    cls: type
    path: str
    mode: str
    encoding: str | None = None
    errors: str | None = None
    newline: str | None = None

    def open(self, opens: Callable[..., IO[Any]]) -> Any:
        """Open the file. `opens`: does what the builtin does. Raises OSError."""
        if self.cls in _PACKED:
            opened: Any = self.cls
            file: Any = opened(self.path, self.mode)
        else:
            file = opens(self.path, self.mode, 0 if self.cls is io.FileIO else -1)
        return file if self.encoding is None else io.TextIOWrapper(file, self.encoding, self.errors, self.newline)

    def open_again(self, file: Any) -> None:
        """Open a file that was closed; it stays the same object. Raises OSError or ValueError."""
        if self.encoding is not None:
            file.__init__(self._replace(encoding=None).open(open), self.encoding, self.errors, self.newline)
        elif self.cls is io.FileIO or self.cls in _PACKED:
            file.__init__(self.path, self.mode)
        else:
            file.__init__(io.FileIO(self.path, self.mode))


def is_file_class(cls: type) -> bool:
    """Return whether objects of this class are files that Python itself reads."""
    return issubclass(cls, io.IOBase) and cls.__module__ in _MODULES and cls is not io.BufferedWriter


def is_open_to_read(file: Any) -> bool:
    """Return whether the file is open to be read, be it a pipe."""
    try:
        return not file.closed and bool(file.readable())
    except (OSError, ValueError, AttributeError):  # what lies below was closed, or is another object of the script's
        return False


def is_read(file: Any) -> bool:
    """Return whether the file is open to be read, and can be put to a place."""
    return is_open_to_read(file) and bool(file.seekable())


def is_used_up(file: Any) -> bool:
    """Return whether what is read from the file is gone: it cannot be put back to where it stood."""
    return is_open_to_read(file) and not (is_read(file) and place_of(file) is not None)


def is_text(file: Any) -> bool:
    """Return whether the file is one of text that reads another one."""
    return type(file) is io.TextIOWrapper and not _is_closed(file)


def _is_closed(file: Any) -> bool:
    try:
        return bool(file.closed)
    except ValueError:  # what it has read was detached from it
        return True


def place_of(file: Any) -> FilePlace | None:
    """Return where a file stands; None where that cannot be told."""
    if _is_closed(file):
        return FilePlace(None)
    place = file_places.place_of(file)
    if place is None:
        return None
    content = _content(file) if type(file) in IN_MEMORY else None
    return FilePlace(place, content, _mark(file) if content is None else None)


def _mark(file: Any) -> tuple[int, int] | None:
    """Return what tells whether a file was written to; None of one that is only read."""
    if type(file) is io.BytesIO:
        held = file.getbuffer()
        pieces = (held[at : at + _PIECE_BYTES] for at in range(0, len(held), max(_PIECE_BYTES, len(held) // _PIECES)))
        return len(held), functools.reduce(lambda sum_, piece: zlib.crc32(piece, sum_), pieces, 0)
    if type(file) is io.StringIO:
        text = file.getvalue()
        return len(text), hash(text)
    try:
        if not file.writable():
            return None
        status = os.fstat(file.fileno())
    except (OSError, ValueError):
        return None
    return status.st_size, status.st_mtime_ns


def _content(file: Any) -> bytes | str | None:
    place = file.tell()
    length = file.seek(0, os.SEEK_END)
    file.seek(place)
    held: bytes | str = file.getvalue() if length <= MOST_BYTES else ""
    return held if length <= MOST_BYTES else None


def put(file: Any, to: FilePlace, form: ReadForm | None) -> None:
    """Put a file to where it stood, and what it holds in memory to what it was.

    Raises OSError, ValueError or BufferError where it cannot be put.
    """
    now = place_of(file)
    if now == to:
        return
    if to.place is None:
        raise ValueError("it was closed")
    if now is not None and now.place is None:
        if form is None:
            raise ValueError("it was closed, and cannot be opened again")
        form.open_again(file)
    if to.content is not None and (now is None or now.content != to.content):
        file.seek(0)
        file.truncate()
        file.write(to.content)
    file_places.put(file, to.place)


def form_of(file: Any) -> ReadForm | None:
    """Return what it takes to open the file again; None where that is not known."""
    text = file if type(file) is io.TextIOWrapper else None
    below = file.buffer if text is not None else file
    raw = _raw(below)
    if raw is None:
        return None
    path = _path(raw)
    if path is None:
        return None
    mode = "a+b" if "a" in raw.mode else "r+b" if raw.writable() else "rb"
    form = ReadForm(type(below), path, mode)
    if text is None:
        return form
    newline = file_places.newline_of(text)
    return form._replace(encoding=text.encoding, errors=text.errors, newline=newline)


def _path(raw: io.FileIO) -> str | None:
    """Return where the file lies. In a process that has taken over it may be a copy, which has the name of the file itself."""
    try:
        named = os.path.realpath(raw.name) if isinstance(raw.name, str) else ""
        if named and os.path.isfile(named) and os.stat(named).st_size == os.fstat(raw.fileno()).st_size:
            return named
        path = os.readlink(f"/proc/self/fd/{raw.fileno()}")
        return path if os.path.samestat(os.fstat(raw.fileno()), os.stat(path)) else None
    except (OSError, ValueError):
        return None


def _raw(file: Any) -> io.FileIO | None:
    """Return the file of the system below it, if it is open."""
    if type(file) in _PACKED:
        file = getattr(file, "fileobj", None) or getattr(file, "_fp", None)
    elif type(file) not in _PLAIN:
        return None
    file = getattr(file, "raw", file)
    return file if type(file) is io.FileIO and not file.closed else None
