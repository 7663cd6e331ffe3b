"""One line at the bottom of a terminal that others print on too.

The training processes own the terminal: they write to it directly, and see a terminal. So the last row is taken out of
the region that scrolls (as apt does), and drawn with the cursor saved and put back, in one write each time.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import TextIO

_SAVE = "\x1b7"
_RESTORE = "\x1b8"
MINIMUM_ROWS = 6


def reserve(rows: int) -> str:
    """Take the last of `rows` rows out of the scrolling region, and leave the cursor above it."""
    return f"\n{_SAVE}\x1b[1;{rows - 1}r{_RESTORE}\x1b[1A"


def draw(rows: int, line: str) -> str:
    """Draw `line` (with its colours, no wider than the terminal) in the last row."""
    return f"{_SAVE}\x1b[{rows};1H\x1b[0m\x1b[K{line}\x1b[0m{_RESTORE}"


def release(rows: int) -> str:
    """Let the whole terminal scroll again, with an empty last row and the cursor where it was."""
    return f"{_SAVE}\x1b[r\x1b[{rows};1H\x1b[K{_RESTORE}"


def is_possible(stream: TextIO, environment: Mapping[str, str]) -> bool:
    """Return whether `stream` is a terminal in the foreground, high enough, that knows scrolling regions."""
    if environment.get("TERM", "dumb") in ("dumb", "unknown") or not stream.isatty():
        return False
    try:
        fd = stream.fileno()
        return os.get_terminal_size(fd).lines >= MINIMUM_ROWS and os.tcgetpgrp(fd) == os.getpgrp()
    except OSError:
        return False


class BottomLine:
    """Not shown before the first `show`; `close` leaves the terminal as it was."""

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._rows = 0

    @property
    def columns(self) -> int:
        return os.get_terminal_size(self._fd).columns

    def show(self, line: str) -> None:
        rows = os.get_terminal_size(self._fd).lines
        text = ""
        if rows != self._rows:
            if self._rows:
                text += release(min(self._rows, rows))
            text += reserve(rows)
            self._rows = rows
        self._write(text + draw(rows, line))

    def close(self) -> None:
        if self._rows:
            self._write(release(self._rows))
            self._rows = 0

    def _write(self, text: str) -> None:
        data = text.encode()
        while data:
            data = data[os.write(self._fd, data) :]
