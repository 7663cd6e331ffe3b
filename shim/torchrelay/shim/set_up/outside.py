"""What a rank's set-up learned from outside of the program, so that a joiner's set-up learns the same.

Each answer is kept under what was asked and the line of code that asked. So a spare that has imported more or less than the
lost rank had, or in another order, still gives each line the answers that this line got.
"""

from __future__ import annotations

import functools
import os
import pickle
import threading
from collections import deque
from collections.abc import Callable
from types import FrameType
from typing import Any, Protocol

from torchrelay.protocol.errors import JournalError, StateMismatchError

MAX_BYTES = 4 << 20
"""What is kept of one set-up at most."""
_MAX_BY_LINE = 1000
"""Of answers that a joiner can do without, as many are kept of one line: it may wait for something, looking at the clock."""
_ANSWER_BYTES = 64
"""What one answer takes besides its content, roughly."""
_PACKAGE_FOLDERS = frozenset({"site-packages", "dist-packages"})

Key = tuple[str, str, int]
"""What was asked, and the module and the line that asked."""


@functools.lru_cache(maxsize=4096)
def whose(file: str) -> str:
    """Return whose a source file is: `library` for Python's own, `package` for what is installed, `own` for the user's."""
    if not _PACKAGE_FOLDERS.isdisjoint(file.split(os.sep)):
        return "package"
    return "library" if file.startswith(_library()) else "own"


@functools.lru_cache(maxsize=1)
def _library() -> tuple[str, ...]:
    folders = {os.path.dirname(os.__file__)}  # sysconfig would be one more module that only we import
    folders |= {os.path.realpath(folder) for folder in folders}
    return ("<frozen", *(os.path.join(folder, "") for folder in folders))


def asking(frame: FrameType | None, *through: str) -> FrameType | None:
    """Return the frame that asks: the innermost one outside of Python's own library and of the modules whose names begin so.

    None on other threads, and where torchrelay itself asks: these need not be given the same answer again.
    """
    if threading.get_ident() != threading.main_thread().ident:
        return None
    while frame is not None:
        name = str(frame.f_globals.get("__name__", ""))
        if name.startswith("torchrelay."):
            return None
        if whose(frame.f_code.co_filename) != "library" and not (through and name.startswith(through)):
            return frame
        frame = frame.f_back
    return None


def key_of(kind: str, frame: FrameType) -> Key:
    return kind, str(frame.f_globals.get("__name__", "")), frame.f_lineno


def is_own(frame: FrameType) -> bool:
    """Return whether the user's own code asks."""
    return whose(frame.f_code.co_filename) == "own"


class Outside(Protocol):
    """Answers what set-up asks: in a rank answers are written down, in a joiner they are given again."""

    key: bytes
    """From which the generators are seeded that a process begins with."""
    lost: str
    """What was needed and could not be kept; empty in a joiner."""

    def answer(self, key: Key, ask: Callable[[], Any], *, needed: bool = False) -> Any:
        """Return `ask()`, or in a joiner what the lost rank was answered.

        `needed`: raises StateMismatchError where a joiner asks and the lost rank had not.
        """

    def knows(self, key: Key) -> bool:
        """Return whether a joiner has an answer left."""


class Recorded:
    """Writes down what a rank is answered."""

    def __init__(self, key: bytes) -> None:
        self.key = key
        self._answers: dict[Key, list[Any]] = {}
        self._needed: list[tuple[Key, Any]] = []
        """Since the latest mark, in order, as far as it is kept."""
        self._all_kept = True
        self._again: dict[Key, deque[Any]] = {}
        self._left_bytes = MAX_BYTES
        self.lost = ""
        """What was needed and could not be kept."""

    def answer(self, key: Key, ask: Callable[[], Any], *, needed: bool = False) -> Any:
        if again := self._again.get(key):
            given = again.popleft()
            self._needed.append((key, given))
            return given
        given = ask()
        size = _ANSWER_BYTES + (len(given) if isinstance(given, (bytes, str)) else 0)
        kept = self._answers.setdefault(key, [])
        if self._left_bytes < size or (len(kept) >= _MAX_BY_LINE and not needed):
            self._all_kept &= not needed
            if needed and not self.lost:
                self.lost = f"{key[1]}, line {key[2]}: set-up asks for too much of {key[0]} for it to be kept"
            return given
        self._left_bytes -= size
        kept.append(given)
        if needed:
            self._needed.append((key, given))
        return given

    def knows(self, key: Key) -> bool:
        return False

    def mark(self) -> None:
        """Note a place that training may have to go back to."""
        self._needed = []
        self._again = {}
        self._all_kept = True

    def go_back(self) -> None:
        """Give again what was needed since the mark: it can be had but once. Raises StateMismatchError if it was too much."""
        if not self._all_kept:
            raise StateMismatchError(self.lost)
        for key, given in self._needed:
            self._again.setdefault(key, deque()).append(given)
        self._needed = []

    def snapshot(self) -> bytes:
        return pickle.dumps((self.key, self._answers, self.lost), pickle.HIGHEST_PROTOCOL)


class Replayed:
    """Gives a joiner the lost rank's answers.

    Raises JournalError for what is no snapshot, StateMismatchError where one was not kept whole.
    """

    def __init__(self, snapshot: bytes) -> None:
        try:
            self.key, answers, lost = pickle.loads(snapshot)
        except (pickle.UnpicklingError, EOFError, TypeError, ValueError) as e:
            raise JournalError(f"what the lost rank's set-up was answered cannot be read: {e}") from e
        self.lost = ""
        if lost:
            raise StateMismatchError(lost)
        self._answers: dict[Key, deque[Any]] = {key: deque(given) for key, given in answers.items()}

    def answer(self, key: Key, ask: Callable[[], Any], *, needed: bool = False) -> Any:
        given = self._answers.get(key)
        if given:
            return given.popleft()
        if needed:
            kind, module, line = key
            raise StateMismatchError(f"{module}, line {line}: set-up asks for {kind} more often than the lost rank did")
        return ask()

    def knows(self, key: Key) -> bool:
        return bool(self._answers.get(key))
