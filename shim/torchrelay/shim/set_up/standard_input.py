"""What a script reads from standard input: a new process cannot read it again.

What set-up has read is kept with what else it learned from outside, and given again. Training that reads ends protection, before
it gets to see what it has read: neither a new process nor a rank that goes back would find that a second time.

`sys.stdin` is made anew from a subclass of its own class, before the script's first line. On a terminal `input` reads past
`sys.stdin`, and is diverted. Not seen: `os.read(0, …)`, `open(0)`, and programs that the script starts.
"""

from __future__ import annotations

import builtins
import io
import os
import stat
import sys
import threading
from collections.abc import Callable
from types import FrameType
from typing import Any

from torchrelay.protocol.errors import UnsupportedError
from torchrelay.shim.adapters.cpython.diverted import Diversions
from torchrelay.shim.set_up.outside import Outside, asking, key_of

KIND = "standard input"
_DESCRIPTOR = 0
_OURS = (__name__, Diversions.__module__)


def has_standard_input() -> bool:
    """Return whether there is something that a script could read. It is empty where it leads to /dev/null, for every process."""
    try:
        found = os.fstat(_DESCRIPTOR)
    except OSError:
        return False
    return not (stat.S_ISCHR(found.st_mode) and found.st_rdev == os.stat(os.devnull).st_rdev)


class InputReads:
    """Decides what becomes of each read. `outside`: keeps what set-up reads, or gives it again."""

    def __init__(self, outside: Outside) -> None:
        self._outside = outside
        self._reader: int | None = None
        """The thread that reads."""
        self._ends_protection: Callable[[str], None] | None = None
        self._is_set_up = True
        self.unseen = ""
        """Which read of set-up's is not kept, and so cannot be given again."""

    def begin_training(self, ends_protection: Callable[[str], None] | None) -> None:
        """Keep nothing from here on. `ends_protection(reason)` is called at the next read; None: nothing is protected."""
        self._is_set_up = False
        self._ends_protection = ends_protection

    def read(self, ask: Callable[[], Any]) -> Any:
        """Return `ask()`, or in a joiner's set-up what the lost rank has read. Raises StateMismatchError if that rank read less."""
        if self._reader == (reader := threading.get_ident()):
            return ask()  # a method of sys.stdin that calls another one
        if self._is_set_up and self._outside.lost:
            return ask()  # no rank is replaced any more, and there may be millions of lines to come
        frame: FrameType | None = sys._getframe(1)
        while frame is not None and frame.f_globals.get("__name__") in _OURS:
            frame = frame.f_back
        frame = asking(frame)
        self._reader = reader
        try:
            if not self._is_set_up:
                self._ends(frame)
            elif frame is not None:
                return self._outside.answer(key_of(KIND, frame), ask, needed=True)
            elif not self.unseen:
                self.unseen = f"set-up reads {KIND} on a thread of its own"
            return ask()
        finally:
            self._reader = None

    def _ends(self, frame: FrameType | None) -> None:
        told = self._ends_protection
        self._ends_protection = None
        if told is not None:
            where = f" ({frame.f_code.co_filename}:{frame.f_lineno})" if frame is not None else ""
            told(f"training reads {KIND}{where}, which cannot be read a second time")


class SeenBytes(io.BufferedReader):
    """`sys.stdin.buffer`."""

    reads: InputReads

    def read(self, *args: Any) -> Any:
        return self.reads.read(lambda: super(SeenBytes, self).read(*args))

    def read1(self, *args: Any) -> Any:
        return self.reads.read(lambda: super(SeenBytes, self).read1(*args))

    def peek(self, *args: Any) -> Any:
        return self.reads.read(lambda: super(SeenBytes, self).peek(*args))

    def readline(self, *args: Any) -> Any:
        return self.reads.read(lambda: super(SeenBytes, self).readline(*args))

    def __next__(self) -> Any:
        return _or_end(self.reads, super().__next__, StopIteration)

    def readinto(self, buffer: Any) -> Any:
        return self._into(buffer, self.reads.read(lambda: super(SeenBytes, self).read(memoryview(buffer).nbytes)))

    def readinto1(self, buffer: Any) -> Any:
        return self._into(buffer, self.reads.read(lambda: super(SeenBytes, self).read1(memoryview(buffer).nbytes)))

    @staticmethod
    def _into(buffer: Any, given: bytes) -> int:
        memoryview(buffer).cast("B")[: len(given)] = given
        return len(given)


class SeenText(io.TextIOWrapper):
    """`sys.stdin`."""

    reads: InputReads

    def read(self, *args: Any) -> Any:
        return self.reads.read(lambda: super(SeenText, self).read(*args))

    def readline(self, *args: Any) -> Any:
        return self.reads.read(lambda: super(SeenText, self).readline(*args))

    def __next__(self) -> Any:
        return _or_end(self.reads, super().__next__, StopIteration)


def _or_end(reads: InputReads, ask: Callable[[], Any], end: type[Exception]) -> Any:
    """Return what `ask` returns. Where `ask` raises `end`, None is kept, and `end` is raised again."""

    def asked() -> Any:
        try:
            return ask()
        except end:
            return None

    given = reads.read(asked)
    if given is None:
        raise end
    return given


def watch_standard_input(outside: Outside, diversions: Diversions) -> InputReads:
    """Exchange `sys.stdin`. Raises UnsupportedError where that is not Python's own, or where it was read already."""
    text = sys.stdin
    if type(text) is not io.TextIOWrapper or type(text.buffer) is not io.BufferedReader or text is not sys.__stdin__:
        raise UnsupportedError(f"{KIND} is a {type(text).__qualname__}, and not as Python makes it")
    reads = InputReads(outside)
    raw = io.FileIO(_DESCRIPTOR, closefd=False)
    raw.name = text.name
    seen_bytes = SeenBytes(raw)
    seen = SeenText(seen_bytes, text.encoding, text.errors, None, text.line_buffering)
    vars(seen)["mode"] = text.mode
    seen_bytes.reads = seen.reads = reads
    for name in ("stdin", "__stdin__"):
        vars(sys)[name] = seen

    def diverted(original: Callable[..., Any]) -> Callable[..., Any]:
        return lambda *prompt: _or_end(reads, lambda: original(*prompt), EOFError)

    diversions.divert(builtins.input, diverted)
    return reads
