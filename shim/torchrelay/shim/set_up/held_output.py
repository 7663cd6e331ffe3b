"""Standard output and error, held back while a joiner repeats what the lost rank has printed already."""

from __future__ import annotations

import contextlib
import ctypes
import os
import sys

_SHOWN_BYTES = 64 << 10


class HeldOutput:
    """Leads file descriptors 1 and 2 to memory from `start` to `stop`; `sys.stdout` stays the object it is.

    What was held is dropped, unless `show` is called. A child that was started meanwhile keeps writing to the memory.
    """

    def __init__(self) -> None:
        self._held = -1
        self._real: tuple[int, int] | None = None

    def start(self) -> None:
        """Hold output back. Raises OSError if the process has no standard output or error to speak of."""
        _flush()
        self._held = os.memfd_create("torchrelay-output", os.MFD_CLOEXEC)
        self._real = (_duplicate(1), _duplicate(2))
        os.dup2(self._held, 1)
        os.dup2(self._held, 2)

    def stop(self) -> None:
        """Let output be seen from here on. Does nothing if nothing is held."""
        if self._real is None:
            return
        _flush()
        for real, standard in zip(self._real, (1, 2), strict=True):
            os.dup2(real, standard)
            os.close(real)
        self._real = None

    def show(self) -> None:
        """Stop after something went wrong, and write the last 64 KiB of what was held to standard error."""
        self.stop()
        if self._held < 0:
            return
        size = os.fstat(self._held).st_size
        tail = os.pread(self._held, _SHOWN_BYTES, max(0, size - _SHOWN_BYTES))
        self.close()
        while tail:
            tail = tail[os.write(2, tail) :]

    def close(self) -> None:
        """Stop, and drop what was held."""
        self.stop()
        if self._held >= 0:
            os.close(self._held)
            self._held = -1


def _duplicate(descriptor: int) -> int:
    duplicate = os.dup(descriptor)
    os.set_inheritable(duplicate, False)
    return duplicate


def _flush() -> None:
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError, AttributeError):  # closed, or None
            stream.flush()
    ctypes.CDLL(None).fflush(None)  # what C libraries have printed
