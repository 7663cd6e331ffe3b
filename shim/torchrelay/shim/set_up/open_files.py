"""Files that a joiner's set-up has opened as scratch copies, and leaves open: they go on at the end of the real ones."""

from __future__ import annotations

import contextlib
import io
import os
import weakref
from typing import IO, Any


class OpenFiles:
    def __init__(self) -> None:
        self._opened: list[tuple[weakref.ref[IO[Any]], weakref.ref[io.FileIO], str]] = []
        self._descriptors: list[tuple[int, tuple[int, int], str, bool]] = []

    def add(self, opened: IO[Any], file: Any) -> None:
        if opened.writable():
            raw: Any = opened
            while not isinstance(raw, io.FileIO):
                raw = raw.buffer if isinstance(raw, io.TextIOWrapper) else raw.raw
            self._opened.append((weakref.ref(opened), weakref.ref(raw), os.path.realpath(os.fsdecode(file))))

    def add_descriptor(self, descriptor: int, path: Any, *, reads: bool = False) -> None:
        self._descriptors.append((descriptor, _identity(descriptor), os.path.realpath(os.fsdecode(path)), reads))

    def go_on(self) -> None:
        """Lead the files that are still open to the ends of the real ones. Raises OSError where a real file cannot be opened."""
        for opened, raw, path in self._opened:
            _go_on_at_the_end(opened(), raw(), path)
        for descriptor, identity, path, reads in self._descriptors:
            with contextlib.suppress(OSError):  # closed meanwhile, or the real one is gone
                if _identity(descriptor) == identity:
                    if reads:
                        _read_on(descriptor, path)
                    else:
                        _lead_to(descriptor, path, os.O_RDWR)
        self._opened.clear()
        self._descriptors.clear()


def _go_on_at_the_end(opened: IO[Any] | None, raw: io.FileIO | None, path: str) -> None:
    if raw is None or raw.closed:
        return
    if opened is not None:
        with contextlib.suppress(ValueError):  # detached from its raw file
            opened.flush()  # into the scratch copy
    _lead_to(raw.fileno(), path, os.O_RDWR if raw.readable() else os.O_WRONLY)
    with contextlib.suppress(ValueError):
        (opened if opened is not None else raw).seek(0, os.SEEK_END)  # buffers know another position


def _read_on(descriptor: int, path: str) -> None:
    """Let a descriptor go on in the real file, at the same place, if that file has only grown."""
    place = os.lseek(descriptor, 0, os.SEEK_CUR)
    known_bytes = os.fstat(descriptor).st_size
    real = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        if os.pread(real, known_bytes, 0) == os.pread(descriptor, known_bytes, 0):
            os.dup2(real, descriptor, os.get_inheritable(descriptor))
            os.lseek(descriptor, place, os.SEEK_SET)
    finally:
        os.close(real)


def _identity(descriptor: int) -> tuple[int, int]:
    status = os.fstat(descriptor)
    return status.st_dev, status.st_ino


def _lead_to(descriptor: int, path: str, flags: int) -> None:
    """Lead the descriptor to the real file, at its end. The file is created again if it was removed meanwhile."""
    real = os.open(path, flags | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o666)
    os.dup2(real, descriptor, os.get_inheritable(descriptor))
    os.close(real)
