"""Which files a rank's set-up did not find, which it removed, what small folders held, and what it read from small files: so that
a joiner finds the same.

What was there, is there still in most cases. Where it is not (another rank has renamed, removed or written it since), a joiner
is told what the lost rank was told of it, and reads what that has read. What the job has made since then was absent when set-up
asked for it, made it or renamed something to it. Paths that Python's import system asks for are left out.
"""

from __future__ import annotations

import functools
import io
import os
import stat
import sys
import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

from torchrelay.shim.adapters.cpython.diverted import Diversions
from torchrelay.shim.set_up.asked_paths import (
    by_script,
    canonical,
    folders_changed,
    is_at_or_below,
    is_path,
    is_within,
    on_main_thread,
)

_MAX_BYTES = 2 << 20
"""Of paths and names."""
_MAX_NAMES = 256
_SMALL_FOLDER_BYTES = 16 << 10
"""A larger folder holds data rather than runs or checkpoints, and its content is not written down."""
_SMALL_FILE_BYTES = 64 << 10
_CONTENT_BYTES = 1 << 20
"""What is kept of one file that set-up reads, and of all of them."""
_MOST_LARGE = 64
"""Of files that set-up reads and whose content is not kept: so many are looked for later."""
_NO_FILES = ("/proc/", "/sys/", "/dev/", "/run/", "/var/run/")
"""Where there is nothing to read twice: what the kernel tells, and credentials that are exchanged now and then."""
_FOUND_BYTES = 1 << 20
_ANSWER_BYTES = 250
"""What is kept at most of what was there, and what one answer takes besides its path, roughly."""


def installed_in(prefixes: Iterable[str]) -> tuple[str, ...]:
    """Return the folders that Python is installed in, as canonical names begin: a virtual environment may be a link."""
    return tuple({os.path.join(os.path.realpath(prefix), "") for prefix in prefixes})


_INSTALLED = installed_in((sys.prefix, sys.base_prefix))
"""What lies there does not go while a job runs."""
CREATES = os.O_CREAT | os.O_TRUNC
Call = Callable[..., Any]


@dataclass
class FilesSeen:
    """What set-up has learned of files, by canonical path. `absent`: how often nothing was there.

    `removed`: the kind of what it removed and had not made. `listed`: a folder's names at each listing. `found`: the latest answer
    to a question. `read`: what a file held each time it was opened to read. `large`: read, and content not kept.
    """

    absent: dict[str, int] = field(default_factory=dict)
    removed: dict[str, str] = field(default_factory=dict)
    listed: dict[str, list[tuple[str, ...]]] = field(default_factory=dict)
    found: dict[tuple[str, str], Any] = field(default_factory=dict)
    read: dict[str, list[bytes | None]] = field(default_factory=dict)
    large: list[str] = field(default_factory=list)


def question(function: str, options: dict[str, Any]) -> str:
    """Return under what an answer of `os.stat`, `os.lstat` or `os.readlink` is kept."""
    return "lstat" if function == "stat" and options.get("follow_symlinks") is False else function


def question_of_access(mode: int) -> str:
    """Return under what an answer of `os.access` is kept, which may be asked of one path in several ways."""
    return f"access {mode}"


class Busy(threading.local):
    """Whether this thread is in code of ours that asks for files itself."""

    on = False


class SeenRecorder:
    """Writes down in `seen` what a rank's main thread meets, until the diversions end."""

    def __init__(self) -> None:
        self.seen = FilesSeen()
        self._created: set[str] = set()
        self._taken_away: set[str] = set()
        self._left_bytes = _MAX_BYTES
        self._found_left_bytes = _FOUND_BYTES
        self._content_left_bytes = _CONTENT_BYTES
        self._busy = Busy()

    def divert(self, diversions: Diversions) -> None:
        """Divert what asks for files. Raises UnsupportedError where this Python is built otherwise."""
        diverted: dict[Any, Callable[[Call], Call]] = {
            **dict.fromkeys((os.stat, os.lstat, os.readlink), self._asking),
            os.access: self._access,
            os.listdir: self._listing,
            os.scandir: self._listing,
            os.mkdir: self._making,
            **dict.fromkeys((os.symlink, os.link), functools.partial(self._making, place=1)),
            **dict.fromkeys((os.rename, os.replace), self._renaming),
            **dict.fromkeys((os.unlink, os.remove, os.rmdir), self._removing),
            io.open: self._open,
            os.open: self._os_open,
        }
        for function, make in diverted.items():
            diversions.divert(function, make)

    def _concerns(self, path: Any, options: dict[str, Any]) -> bool:
        """Return whether the script asks, and by a path. To be called by what is diverted."""
        if (
            self._busy.on
            or self.is_full
            or not is_path(path)
            or not on_main_thread()
            or not by_script(sys._getframe(2))
        ):
            return False
        return all(value is None for name, value in options.items() if name.endswith("dir_fd"))

    def _note(self, act: Callable[[], None]) -> None:
        self._busy.on = True
        try:
            act()
        except (OSError, ValueError):
            pass  # a path that cannot be told: the script has been told, or goes on
        finally:
            self._busy.on = False

    def _was_absent(self, name: str) -> None:
        if self._was_taken_away(name):
            return  # by set-up itself: so it is in a joiner
        if name not in self.seen.absent:
            self._left_bytes -= len(name)
        self.seen.absent[name] = self.seen.absent.get(name, 0) + 1

    def _was_found(self, asked: str, path: Any, answer: Any) -> None:
        name = canonical(path)
        if name.startswith(_INSTALLED) or name in self._created:  # a joiner's set-up makes that, too
            return
        if (asked, name) not in self.seen.found:
            self._found_left_bytes -= len(name) + _ANSWER_BYTES
        self.seen.found[asked, name] = os.fsdecode(answer) if isinstance(answer, bytes) else answer

    def _was_read(self, path: Any, descriptor: int) -> None:
        """Keep what a file holds; None for a file that is large, or that not everybody may read: it may be a secret."""
        name = canonical(path)
        seen = self.seen
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode) or name.startswith((*_NO_FILES, *_INSTALLED)):
            return
        most_bytes = min(_SMALL_FILE_BYTES, self._content_left_bytes)
        if status.st_size > most_bytes or not status.st_mode & stat.S_IROTH:
            if name in seen.read:
                seen.read[name].append(None)
            if len(seen.large) < _MOST_LARGE and name not in seen.large and not is_at_or_below(name, self._created):
                seen.large.append(name)
        elif not is_at_or_below(name, self._created):  # a joiner's set-up makes that, too
            content = os.pread(descriptor, _SMALL_FILE_BYTES, 0)
            known = seen.read.setdefault(name, [None] if name in seen.large else [])
            if content not in known:
                self._content_left_bytes -= len(content) + len(name)
            known.append(next((held for held in known if held == content), content))

    @property
    def _keeps_found(self) -> bool:
        return self._found_left_bytes > 0

    @property
    def is_full(self) -> bool:
        """Return whether there was too much to write down, so that a joiner may find what the lost rank did not."""
        return self._left_bytes <= 0

    def _was_taken_away(self, name: str) -> bool:
        while self._taken_away and name not in self._created:
            if name in self._taken_away:
                return True
            folder = os.path.dirname(name)
            if folder == name:
                break
            name = folder
        return False

    def _was_made(self, name: str) -> None:
        self._was_absent(name)
        self._created.add(name)
        self._taken_away.discard(name)

    def _was_removed(self, name: str, kind: str) -> None:
        self._taken_away.add(name)
        self.seen.large[:] = [large for large in self.seen.large if not is_within(large, name)]
        for folder in [f for f in self.seen.listed if is_within(f, name)]:
            del self.seen.listed[
                folder
            ]  # a joiner does not look into it before it is removed, as rmtree does by other means
        if name in self._created:
            self._created.discard(name)
        elif self._left_bytes > len(name):
            self._left_bytes -= len(name)
            self.seen.removed[name] = kind

    def _is_there(self, path: Any) -> bool:
        self._busy.on = True
        try:
            return os.path.lexists(path)
        except (OSError, ValueError):
            return True
        finally:
            self._busy.on = False

    # What is diverted.

    def _reading(self, original: Call) -> Call:
        def ask(*args: Any, **options: Any) -> Any:
            try:
                return original(*args, **options)
            except FileNotFoundError:
                path = args[0] if args else options.get("path", ".")
                if self._concerns(path, options):
                    self._note(lambda: self._was_absent(canonical(path)))
                raise

        return ask

    def _asking(self, original: Call) -> Call:
        read = self._reading(original)
        function = original.__name__

        def ask(*args: Any, **options: Any) -> Any:
            given = read(*args, **options)
            path = args[0] if args else options.get("path")
            if self._keeps_found and self._concerns(path, options):
                self._note(lambda: self._was_found(question(function, options), path, given))
            return given

        return ask

    def _access(self, original: Call) -> Call:
        def access(path: Any, mode: Any, **options: Any) -> Any:
            given = original(path, mode, **options)
            if given:
                if self._keeps_found and self._concerns(path, options):
                    self._note(lambda: self._was_found(question_of_access(mode), path, given))
            elif self._concerns(path, options) and not self._is_there(path):
                self._note(lambda: self._was_absent(canonical(path)))
            return given

        return access

    def _listing(self, original: Call) -> Call:
        read = self._reading(original)

        def ask(*args: Any, **options: Any) -> Any:
            path = args[0] if args else options.get("path")
            given = read(*args, **options)
            path = "." if path is None else path
            if self._concerns(path, {}):
                self._note(lambda: self._was_listed(path, given))
            return given

        return ask

    def _was_listed(self, path: Any, given: Any) -> None:
        if os.stat(path).st_size > _SMALL_FOLDER_BYTES:
            return
        names = tuple(map(os.fsdecode, given if isinstance(given, list) else os.listdir(path)))
        size = sum(map(len, names)) + len(os.fsdecode(path))
        if len(names) <= _MAX_NAMES and size < self._left_bytes:
            self._left_bytes -= size
            self.seen.listed.setdefault(canonical(path), []).append(names)

    def _making(self, original: Call, place: int = 0) -> Call:
        def make(*args: Any, **options: Any) -> Any:
            path = args[place] if len(args) > place else options.get("dst" if place else "path")
            concerned = self._concerns(path, options)
            try:
                made = original(*args, **options)
            except FileNotFoundError:
                if concerned and place == 0:
                    self._note(lambda: self._was_absent(os.path.dirname(canonical(path))))
                raise
            if concerned:
                folders_changed()
                self._note(lambda: self._was_made(canonical(path)))
            return made

        return make

    def _renaming(self, original: Call) -> Call:
        def rename(src: Any, dst: Any, **options: Any) -> Any:
            concerned = self._concerns(src, options) and is_path(dst)
            absent = concerned and not self._is_there(dst)
            kind = "dir" if concerned and _is_folder(src, self._busy) else "file"
            try:
                given = original(src, dst, **options)
            except FileNotFoundError:
                if concerned and not self._is_there(src):
                    self._note(lambda: self._was_absent(canonical(src)))
                raise
            if concerned:
                folders_changed()
                self._note(lambda: self._was_removed(canonical(src), kind))
            if absent:
                self._note(lambda: self._was_made(canonical(dst)))
            return given

        return rename

    def _removing(self, original: Call) -> Call:
        kind = "dir" if original.__name__ == "rmdir" else "file"
        read = self._reading(original)

        def remove(path: Any, **options: Any) -> Any:
            given = read(path, **options)
            folders_changed()
            if self._concerns(path, options):
                self._note(lambda: self._was_removed(canonical(path), kind))
            return given

        return remove

    def _open(self, original: Call) -> Call:
        def open(file: Any, mode: Any = "r", *args: Any, **options: Any) -> Any:
            concerned = self._concerns(file, {}) and isinstance(mode, str)
            creates = concerned and not set(mode).isdisjoint("wax")
            opened = self._opening(lambda: original(file, mode, *args, **options), file, concerned, creates)
            if concerned and set(mode).isdisjoint("wax+"):
                self._note(lambda: self._was_read(file, opened.fileno()))
            return opened

        return open

    def _os_open(self, original: Call) -> Call:
        def open(path: Any, flags: Any, *args: Any, **options: Any) -> Any:
            concerned = self._concerns(path, options) and isinstance(flags, int)
            creates = concerned and bool(flags & CREATES)
            opened = self._opening(lambda: original(path, flags, *args, **options), path, concerned, creates)
            if concerned and not creates and flags & os.O_ACCMODE == os.O_RDONLY:
                self._note(lambda: self._was_read(path, opened))
            return opened

        return open

    def _opening(self, call: Callable[[], Any], path: Any, concerned: bool, creates: bool) -> Any:
        absent = creates and not self._is_there(path)
        try:
            opened = call()
        except FileNotFoundError:
            if concerned:
                self._note(lambda: self._was_absent(os.path.dirname(canonical(path)) if creates else canonical(path)))
            raise
        if absent:
            self._note(lambda: self._was_made(canonical(path)))
        return opened


def _is_folder(path: Any, busy: Busy) -> bool:
    busy.on = True
    try:
        return os.path.isdir(path) and not os.path.islink(path)
    finally:
        busy.on = False
