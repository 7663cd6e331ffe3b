"""Standard streams whose reader may be gone, or which may be closed: nothing that torchrelay says may end a job.

A pipe to a program that has ended, a terminal that was closed, a full disk: each makes a write fail, and what Python still has in
its buffer then turns the exit code of a process into 120.
"""

from __future__ import annotations

import io
import os
import sys
from contextlib import suppress
from typing import BinaryIO, TextIO, cast


class _Unfailing(io.RawIOBase):
    """Bytes to a file descriptor, which stays open. What cannot be written is dropped, and nothing is kept for later."""

    def __init__(self, fd: int) -> None:
        self._fd = fd

    def writable(self) -> bool:
        return True

    def fileno(self) -> int:
        return self._fd

    def isatty(self) -> bool:
        return os.isatty(self._fd)

    def write(self, data: object) -> int:
        whole = memoryview(data).cast("B")  # type: ignore[arg-type]  # typeshed's name for a buffer is newer than Python 3.10
        with suppress(OSError):
            _write(self._fd, whole)
        return whole.nbytes


def _write(fd: int, data: memoryview) -> None:
    while data:
        data = data[os.write(fd, data) :]


def unfailing(stream: TextIO) -> TextIO:
    """Return a stream to the same place on which no write fails. Return `stream` itself if it is not one of the system's."""
    try:
        fd = stream.fileno()
    except (OSError, ValueError):  # in memory, or closed by the script
        return stream
    with suppress(OSError):
        stream.flush()
    raw = cast(BinaryIO, _Unfailing(fd))  # as much of one as a wrapper needs
    return io.TextIOWrapper(raw, encoding=stream.encoding or "utf-8", errors="backslashreplace", write_through=True)


def write_line(text: str) -> None:
    """Write a line to stderr if there is one."""
    if sys.stderr is not None:
        with suppress(OSError, ValueError):
            print(text, file=unfailing(sys.stderr), flush=True)


def print_result(text: str) -> None:
    """Write a line to stdout. Raises OSError if that fails; then nothing of the line is left in Python's buffer."""
    try:
        fd = sys.stdout.fileno()
    except io.UnsupportedOperation:  # in memory
        print(text, flush=True)
        return
    sys.stdout.flush()
    _write(fd, memoryview(f"{text}\n".encode()))


def drop_what_is_left() -> None:
    """Let what Python has not written to stdout yet, and cannot, go nowhere: or it fails once more at the process's end."""
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, 1)
    os.close(null)


def open_closed_ones() -> None:
    """Open /dev/null for each standard stream that was closed when this process started, as under a daemon.

    Otherwise files and sockets would get these numbers, and child processes would write into them.
    """
    for fd, name, mode in ((0, "stdin", "r"), (1, "stdout", "w"), (2, "stderr", "w")):
        try:
            os.fstat(fd)
        except OSError:
            os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)  # it gets the lowest free number
        if getattr(sys, name) is None:
            setattr(sys, name, os.fdopen(fd, mode, closefd=False))
