"""Small files that training itself writes and reads again: a history that is read, extended and written back, a counter, a table.

Their content is state, as of the boundary, from the boundary on that follows the first such use; until then a rank that goes back
has what it has noted of them. Files that training only reads, only writes, or writes anew as a whole before it reads them, are
none: what a step has told the world stays told.
"""

from __future__ import annotations

import fcntl
import os
import stat
import time
from collections.abc import Callable, Mapping
from typing import IO, Any

from torchrelay.protocol.errors import StateMismatchError

_MOST_BYTES = 64 << 10
"""Of one file that is carried."""
_MOST_FILES = 16
_MOST_WRITTEN = 4096
"""Names of files that training has written which are remembered."""
_TICK_NS = 20_000_000
"""The times of files are those of the kernel's latest tick."""


class TrainingFiles:
    def __init__(self, opens: Callable[..., IO[Any]] = open, canonical: Callable[[Any], str] = os.fsdecode) -> None:
        """Begin without files.

        `opens`: does what the builtin does, or opens copies where a joiner may not write yet. `canonical(path)`: returns the name
        by which a path is known.
        """
        self._opens = opens
        self._canonical = canonical
        self._read: set[str] = set()
        """In this step."""
        self._given: set[Any] = set()
        """By what paths files were opened to read in this step."""
        self._extended: set[Any] = set()
        """The names, without folders, of those that were extended."""
        self._written: dict[str, bool] = {}
        """Whether it was extended, or written to in its midst, and not only written anew as a whole."""
        self._began_ns = 0
        """When this step began, by the clock of files, as far as that can be told."""
        self._carried: tuple[str, ...] = ()
        self._to_come: dict[str, None] = {}
        """Those that are carried from the next boundary on."""
        self._before: dict[str, bytes | int] = {}
        """What this step has written to: the content before, or only the length."""
        self.too_large: dict[str, None] = {}
        """Those that would have to be carried."""
        self.kept_open: set[str] = set()
        """Those that training keeps open to read and to write, and has written to; they are not carried."""
        self.is_new = False
        """Whether such a use was seen for the first time since the latest boundary."""

    @property
    def is_any(self) -> bool:
        """Return whether some file is state."""
        return bool(self._carried)

    # What the script does.

    def opens_to_read(self, given: Any) -> bool:
        """Note by what path a step opens a file to read. Return whether `reads` has to look at it, since it was extended before."""
        self._given.add(given)
        return bool(self._extended) and os.path.basename(given) in self._extended

    def may_have_changed(self, changed_ns: int) -> bool:
        """Return whether a file that was changed at this time may have been written to in this step."""
        return changed_ns >= self._began_ns

    def is_known(self, path: str) -> bool:
        """Return whether training was seen to open a file to write, or it is carried."""
        return path in self._carried or path in self._written

    def reads(self, path: str) -> None:
        """Note that a step reads a file."""
        if self._written.get(path):
            self._carry(path)
        self._read.add(path)

    def reads_while_written(self, path: str) -> None:
        """Note that a step reads a file which it has written to since its beginning, by a file that it keeps open."""
        self.writes(path, extends=True)
        self.reads(path)

    def updates(self, path: str) -> None:
        """Note that a step opens a file to read and write it. A large one is an array that is mapped, which shows by itself."""
        size = _size(path)
        if size is not None and size <= _MOST_BYTES:
            self._read.add(path)
            self.writes(path, extends=True)

    def writes(self, path: str, *, extends: bool) -> None:
        """Note that a step is about to write to a file. `extends`: what is there stays, or some of it."""
        was_read = path in self._read or self._was_given(path)
        if was_read:
            self._carry(path)
        if path not in self._before:
            if was_read or path in self._to_come:
                self._note(path)
            elif extends and (size := _size(path)) is not None:
                self._before[path] = size
        if path in self._written or len(self._written) < _MOST_WRITTEN:
            self._written[path] = extends or self._written.get(path, False)
            if extends:
                self._extended.add(os.path.basename(path))

    def _was_given(self, path: str) -> bool:
        name = os.path.basename(path)
        return any(
            os.path.basename(os.fsdecode(given)) == name and self._canonical(given) == path for given in self._given
        )

    def _note(self, path: str) -> None:
        content = self._content(path)
        if content is not None:
            self._before[path] = content

    def _carry(self, path: str) -> None:
        if path in self._carried or path in self._to_come or path in self.too_large:
            return
        size = _size(path)
        if size is None:
            return
        if size <= _MOST_BYTES and len(self._carried) + len(self._to_come) < _MOST_FILES:
            self._to_come[path] = None
        else:
            self.too_large[path] = None
        self.is_new = True

    # State.

    def at_boundary(self) -> None:
        """Note a boundary: what was seen to be read and written is state from now on."""
        self._read.clear()
        self._given.clear()
        self._before.clear()
        self._began_ns = time.time_ns() - _TICK_NS
        self.is_new = False
        if self._to_come:
            self._carried = tuple(sorted({*self._carried, *self._to_come}))
            self._to_come = {}

    def now(self) -> dict[str, bytes | None]:
        """Return what these files hold, by path; None for one that is not there."""
        return {path: self._content(path) for path in self._carried} if self._carried else {}

    def put(self, wanted: Mapping[str, bytes | None]) -> None:
        """Put these files to what they held, and those that this step was the first to use so. Others are no state from here on.

        Raises StateMismatchError where a file cannot be written, and for one that was not there and is by now.
        """
        for path, before in self._before.items():
            if path in self._to_come and path not in wanted:
                self._put_first(path, before)
        self._to_come.update(dict.fromkeys(path for path in self._carried if path not in wanted))
        self._carried = tuple(sorted(wanted))
        for path, content in wanted.items():
            if content is not None and len(content) > _MOST_BYTES:
                if path in self._before:
                    raise StateMismatchError(
                        f"{path}: training writes and reads it, and it is too large to be put back"
                    )
            elif self._content(path) != content:
                self._put(path, content)
        self._read.clear()
        self._given.clear()
        self._before.clear()

    def put_for_real(self) -> None:
        """Give the files themselves what they hold here, where `opens` has opened copies until now. Raises OSError."""
        for path, content in self.now().items():
            if content is not None:
                with open(path, "wb") as file:
                    file.write(content)

    def _put_first(self, path: str, before: bytes | int) -> None:
        now = self._content(path)
        if now is None or now == before:
            return
        if isinstance(before, bytes):
            self._put(path, before)
        elif len(now) > before:
            self._put(path, now[:before])

    def _put(self, path: str, content: bytes | None) -> None:
        if content is None:
            raise StateMismatchError(f"{path}: training had removed it, and it is there again")
        try:
            with self._opens(path, "wb") as file:
                file.write(content)
                _go_on_behind(file)
        except OSError as e:
            raise StateMismatchError(f"{path}: training writes and reads it, and it cannot be put back: {e}") from e

    def _content(self, path: str) -> bytes | None:
        """Return what a file holds. Of one that has become larger than what is carried this is its beginning."""
        try:
            with self._opens(path, "rb") as file:
                content: bytes = file.read(_MOST_BYTES + 1)
        except OSError:
            return None
        if len(content) > _MOST_BYTES and path not in self.too_large:
            self.too_large[path] = None
            self.is_new = True
        return content


def _size(path: str) -> int | None:
    """Return how many bytes a file has; None where there is none, or no plain file."""
    try:
        status = os.stat(path)
    except (OSError, ValueError):
        return None
    return status.st_size if stat.S_ISREG(status.st_mode) else None


def open_elsewhere(file: int) -> list[int]:
    """Return the other descriptors by which this process writes to the same file."""
    status = os.fstat(file)
    found = []
    for name in os.listdir("/proc/self/fd"):
        try:
            other = int(name)
            if other != file and os.path.samestat(status, os.fstat(other)) and _is_writable(other):
                found.append(other)
        except OSError:  # the folder's own, which is closed by now
            continue
    return found


def _is_writable(file: int) -> bool:
    return fcntl.fcntl(file, fcntl.F_GETFL) & os.O_ACCMODE != os.O_RDONLY


def _go_on_behind(file: IO[Any]) -> None:
    """Let files that are kept open write on behind what was just written."""
    file.flush()
    end = os.fstat(file.fileno()).st_size
    for other in open_elsewhere(file.fileno()):
        if os.lseek(other, 0, os.SEEK_CUR) > end:
            os.lseek(other, end, os.SEEK_SET)
