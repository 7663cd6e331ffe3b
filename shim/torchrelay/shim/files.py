"""Files that a joiner's set-up opens for writing: what the lost rank wrote must neither be truncated nor added to.

A file that exists is opened as a scratch copy. When the set-up is over, file objects that are still open go on at the
end of the real file, and everything written meanwhile is dropped: the lost rank wrote it. Not covered: `r+` (it neither
truncates nor appends, and is how large arrays are mapped), `os.open`, and files that C code opens by itself.
"""

from __future__ import annotations

import builtins
import contextlib
import io
import os
import pathlib
import shutil
import stat
import tempfile
import weakref
from typing import IO, Any

from torchrelay.shim.hidden import hide_this_frame


class _Open:
    """Stands for the builtin `open`. An object, and no function: as an attribute of a class it must not bind."""

    def __init__(self, files: JoinerFiles, original: Any) -> None:
        self.files, self.original = files, original
        self.__name__ = self.__qualname__ = "open"
        self.__doc__ = original.__doc__

    def __call__(self, file: Any, mode: str = "r", *args: Any, **options: Any) -> IO[Any]:
        try:
            has_opener = len(args) > 5 or options.get("opener") is not None
            scratch = None if has_opener else self.files.scratch(file, mode)
            if scratch is None:
                return self.original(file, mode, *args, **options)  # type: ignore[no-any-return]  # as open says
            # With an opener the object's `name` stays the user's.
            options["opener"] = lambda _, flags: os.open(scratch, flags, 0o600)
            opened: IO[Any] = self.original(file, mode, *args, **options)
            self.files.track(opened, file)
            return opened
        except BaseException as e:
            hide_this_frame(e)
            raise


class JoinerFiles:
    """In force from `start` to `release`; also a context manager. `start` raises OSError without a place for copies."""

    def __init__(self, parent: str | None = None) -> None:
        """`parent`: where the folder of copies is made, the system's place for temporary files unless given."""
        self._parent = parent
        self._folder: str | None = None
        self._copies: dict[str, str] = {}
        self._made: set[str] = set()
        self._opened: list[tuple[weakref.ref[IO[Any]], weakref.ref[io.FileIO], str]] = []
        self._patched: list[tuple[Any, Any]] = []

    def start(self) -> None:
        self._folder = tempfile.mkdtemp(prefix="torchrelay-", dir=self._parent)
        stand_in = _Open(self, builtins.open)
        # Up to 3.10 pathlib keeps a reference of its own.
        accessor: Any = getattr(pathlib, "_NormalAccessor", None)
        owners: tuple[Any, ...] = (builtins, io, accessor)
        for owner in owners:
            if owner is not None and getattr(owner, "open", None) is stand_in.original:
                self._patched.append((owner, stand_in.original))
                owner.open = stand_in

    def release(self) -> None:
        """Ends it: open files go on at the end of the real ones. Does nothing if it was not started."""
        for owner, original in self._patched:
            owner.open = original
        self._patched.clear()
        for opened, raw, path in self._opened:
            _go_on_at_the_end(opened(), raw(), path)
        self._opened.clear()
        self._copies.clear()
        self._made.clear()
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)
            self._folder = None

    def __enter__(self) -> JoinerFiles:
        self.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self.release()

    def scratch(self, file: Any, mode: Any) -> str | None:
        """The scratch copy to open in the place of `file`, or None if the file itself is to be opened."""
        if self._folder is None or not isinstance(file, (str, bytes, os.PathLike)) or not isinstance(mode, str):
            return None
        try:
            path = os.path.realpath(os.fsdecode(file))
            copy = self._copies.get(path)
            if copy is not None or set(mode).isdisjoint("wax"):
                return copy  # what this set-up has written, it reads
            if path in self._made:
                return None
            if not os.path.lexists(path):
                self._made.add(path)
            if not (stat.S_ISREG(os.stat(path).st_mode) and os.access(path, os.W_OK)):
                return None
        except (OSError, ValueError):
            return None  # not there, or `open` tells
        copy = os.path.join(self._folder, f"{len(self._copies)}-{os.path.basename(path)}")
        if "a" in mode:
            shutil.copyfile(path, copy)
        self._copies[path] = copy
        return copy

    def track(self, opened: IO[Any], file: Any) -> None:
        if opened.writable():
            raw: Any = opened
            while not isinstance(raw, io.FileIO):
                raw = raw.buffer if isinstance(raw, io.TextIOWrapper) else raw.raw
            self._opened.append((weakref.ref(opened), weakref.ref(raw), os.path.realpath(os.fsdecode(file))))


def _go_on_at_the_end(opened: IO[Any] | None, raw: io.FileIO | None, path: str) -> None:
    if raw is None or raw.closed:
        return
    if opened is not None:
        with contextlib.suppress(ValueError):  # detached from its raw file
            opened.flush()  # into the scratch copy
    descriptor = raw.fileno()
    flags = os.O_RDWR if raw.readable() else os.O_WRONLY
    # Created again if somebody has removed it meanwhile.
    real = os.open(path, flags | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o666)
    os.dup2(real, descriptor, os.get_inheritable(descriptor))
    os.close(real)
    with contextlib.suppress(ValueError):
        (opened if opened is not None else raw).seek(0, os.SEEK_END)  # buffers know another position
