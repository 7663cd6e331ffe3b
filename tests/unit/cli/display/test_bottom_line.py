from __future__ import annotations

import fcntl
import os
import pty
import re
import struct
import termios
from collections.abc import Iterator

import pytest

from torchrelay.cli.display.bottom_line import BottomLine, is_possible


class Screen:
    """As much of a terminal as the bottom line needs: scrolling region, cursor, saved cursor, erasing."""

    _TOKEN = re.compile(r"\x1b7|\x1b8|\x1b\[([\d;]*)([A-Za-z])|\n|[^\x1b\n]+")

    def __init__(self, rows: int) -> None:
        self.lines = [""] * rows
        self.row, self.column, self.top, self.bottom = 0, 0, 0, rows - 1
        self._saved = (0, 0)

    def feed(self, text: str) -> None:
        for match in self._TOKEN.finditer(text):
            token = match[0]
            if token == "\x1b7":
                self._saved = (self.row, self.column)
            elif token == "\x1b8":
                self.row, self.column = self._saved
            elif match[2]:
                self._control(match[1], match[2])
            elif token == "\n":
                self._line_feed()
            else:
                self._write(token)

    def _control(self, numbers: str, letter: str) -> None:
        values = [int(n or 0) for n in numbers.split(";")]
        if letter == "r":
            self.top, self.bottom = (values[0] - 1, values[1] - 1) if numbers else (0, len(self.lines) - 1)
            self.row = self.column = 0
        elif letter == "H":
            self.row, self.column = values[0] - 1, values[1] - 1
        elif letter == "A":
            self.row -= values[0]
        elif letter == "K":
            self.lines[self.row] = self.lines[self.row][: self.column]
        else:
            assert letter == "m"

    def _line_feed(self) -> None:
        self.column = 0
        if self.row == self.bottom:
            self.lines[self.top : self.bottom + 1] = [*self.lines[self.top + 1 : self.bottom + 1], ""]
        elif self.row < len(self.lines) - 1:
            self.row += 1

    def _write(self, text: str) -> None:
        line = self.lines[self.row].ljust(self.column)
        self.lines[self.row] = line[: self.column] + text + line[self.column + len(text) :]
        self.column += len(text)


@pytest.fixture
def terminal() -> Iterator[tuple[int, int]]:
    ours, theirs = pty.openpty()
    resize(theirs, 8)
    attributes = termios.tcgetattr(theirs)
    attributes[1] &= ~termios.OPOST
    termios.tcsetattr(theirs, termios.TCSANOW, attributes)
    yield ours, theirs
    os.close(ours)
    os.close(theirs)


def resize(fd: int, rows: int) -> None:
    fcntl.ioctl(fd, termios.TIOCSWINSZ, struct.pack("HHHH", rows, 40, 0, 0))


_END = b"\0end"


def written(ours: int, theirs: int) -> str:
    """All that was written so far: a terminal hands it on piece by piece, so a mark behind it says when it is whole."""
    os.write(theirs, _END)
    data = b""
    while not data.endswith(_END):
        data += os.read(ours, 65536)
    return data.removesuffix(_END).decode()


def test_the_scripts_lines_scroll_above_the_live_line(terminal: tuple[int, int]) -> None:
    ours, theirs = terminal
    screen, bottom = Screen(8), BottomLine(theirs)
    screen.feed("$ torchrelay run\n")
    for number in range(20):
        bottom.show(f"step {number}")
        os.write(theirs, f"loss {number}\n".encode())
        screen.feed(written(ours, theirs))
    assert screen.lines == [*(f"loss {n}" for n in range(14, 20)), "", "step 19"]


def test_an_unfinished_line_of_the_script_goes_on_where_it_was(terminal: tuple[int, int]) -> None:
    ours, theirs = terminal
    screen, bottom = Screen(8), BottomLine(theirs)
    bottom.show("step 1")
    os.write(theirs, b"epoch 1 ")
    bottom.show("step 2")
    os.write(theirs, b"done\n")
    screen.feed(written(ours, theirs))
    assert screen.lines[0] == "epoch 1 done"
    assert screen.lines[-1] == "step 2"


def test_the_terminal_is_left_as_it_was(terminal: tuple[int, int]) -> None:
    ours, theirs = terminal
    screen, bottom = Screen(8), BottomLine(theirs)
    bottom.show("step 1")
    os.write(theirs, b"last words\n")
    bottom.close()
    bottom.close()
    screen.feed(written(ours, theirs))
    assert (screen.top, screen.bottom, screen.row, screen.column) == (0, 7, 1, 0)
    assert screen.lines == ["last words", *[""] * 7]


def test_a_line_that_was_never_shown_writes_nothing(terminal: tuple[int, int]) -> None:
    ours, theirs = terminal
    BottomLine(theirs).close()
    os.write(theirs, b"x")
    assert written(ours, theirs) == "x"


def test_the_line_follows_the_terminals_height(terminal: tuple[int, int]) -> None:
    ours, theirs = terminal
    bottom = BottomLine(theirs)
    bottom.show("step 1")
    resize(theirs, 12)
    bottom.show("step 2")
    screen = Screen(12)
    screen.feed(written(ours, theirs))
    assert (screen.bottom, screen.lines[-1]) == (10, "step 2")


def test_no_live_line_without_a_terminal_that_can(terminal: tuple[int, int]) -> None:
    _, theirs = terminal
    with open(os.devnull, "w") as nothing, open(os.dup(theirs), "w") as elsewhere:
        assert not is_possible(nothing, {"TERM": "xterm"})
        assert not is_possible(elsewhere, {"TERM": "dumb"})
        assert not is_possible(elsewhere, {"TERM": "xterm"})  # a terminal, but not one that we are in the foreground of
