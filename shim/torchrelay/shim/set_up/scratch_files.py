"""Files in a joiner's set-up: it finds what the lost rank found, and what the lost rank wrote stays as it is.

What set-up opens for writing, and exists, is a scratch copy. When set-up is over, files that are still open go on at the end
of the real ones, and everything written meanwhile is dropped: the lost rank wrote it. What it removes, or renames, stays where
it is, and is out of its own sight. What does not exist is made for real. In the check of a script all of this protects the
files that are there. Not covered: `r+` (it neither truncates nor appends, and is how large arrays are mapped), and files that
C code opens by itself. What set-up reads has the content that the lost rank read, where that was small.
"""

from __future__ import annotations

import fcntl
import functools
import io
import os
import shutil
import stat
from collections.abc import Callable
from contextlib import suppress
from typing import IO, Any

from torchrelay.protocol.machine.scratch import scratch_prefix, temporary_folder
from torchrelay.shim.adapters.cpython.diverted import Diversions
from torchrelay.shim.script.hidden_frames import hide_this_frame
from torchrelay.shim.set_up.asked_paths import canonical, folders_changed, is_within, not_found
from torchrelay.shim.set_up.files_seen import FilesSeen
from torchrelay.shim.set_up.files_told import FilesTold
from torchrelay.shim.set_up.open_files import OpenFiles

Call = Callable[..., Any]
_CREATES = os.O_CREAT | os.O_TRUNC


class JoinerFiles(FilesTold):
    """Files of a joiner, in force from `start` to `release`; also a context manager.

    `start` raises OSError without a place for copies, and UnsupportedError where this Python is built otherwise.
    """

    def __init__(
        self,
        parent: str | None = None,
        seen: FilesSeen | None = None,
        *,
        in_children: bool = False,
        new_ones_too: bool = False,
    ) -> None:
        """Prepare. `parent`: where the folder of copies is made, the system's place for temporary files unless given.

        `seen`: what the lost rank had found. Without it nothing is hidden, and what must not exist yet (mode `x`) may exist.
        `in_children`: whether it stays in force in forked children. `new_ones_too`: files that do not exist are made in the folder
        of copies as well.
        """
        self._new_ones_too = new_ones_too
        self._is_strict = seen is not None
        self._in_children = in_children
        super().__init__(seen or FilesSeen())
        self._parent = parent
        self._lock: int | None = None
        """A descriptor by which commands see that the folder's process lives."""
        self._count = 0
        self._open_files = OpenFiles()
        self._diversions = Diversions()
        self._rmtree_by_descriptor: Any = None
        self._torch: Any = None
        self._save: Any = None
        self._open_here: Call = open

    def start(self) -> None:
        folders_changed()
        self._folder, self._lock = _new_folder(self._parent)
        divert = self._diversions.divert
        diverted: dict[Any, Callable[[Call], Call]] = {
            **dict.fromkeys((os.stat, os.lstat, os.readlink), self._asking),
            **dict.fromkeys((os.chmod, os.utime), self._on_one),
            os.listdir: self._listdir,
            os.scandir: self._scandir,
            os.access: self._access,
            os.mkdir: self._mkdir,
            os.rmdir: self._rmdir,
            os.symlink: self._symlink,
            **dict.fromkeys((os.unlink, os.remove), self._unlink),
            **dict.fromkeys((os.rename, os.replace), self._rename),
            os.open: self._os_open,
            io.open: self._open,
        }
        for function, make in diverted.items():
            divert(function, make)
        if not self._in_children:
            os.register_at_fork(after_in_child=self._end_in_child)
        self._rmtree_by_descriptor = vars(shutil).get("_use_fd_functions")
        vars(shutil)["_use_fd_functions"] = (
            False  # it would remove by names below a descriptor, which nobody can follow
        )

    def release(self) -> None:
        """End it: open files go on at the end of the real ones. Does nothing if it was not started."""
        if self._folder is None:
            return
        self._diversions.end()
        if self._torch is not None:
            self._torch.save = self._save
        vars(shutil)["_use_fd_functions"] = self._rmtree_by_descriptor
        self._open_files.go_on()
        shutil.rmtree(self._folder, ignore_errors=True)
        self._folder = None
        self._unlock()

    def _end_in_child(self) -> None:
        """End it in a child, which may outlive this process, and does not need the folder."""
        self._diversions.end()
        self._unlock()

    def _unlock(self) -> None:
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def torch_imported(self, torch: Any) -> None:
        """Let torch.save open a path by Python's `open`, which leads to the scratch copy. By itself it opens the path in C++."""
        original = torch.save

        @functools.wraps(original)
        def save(obj: Any, f: Any, *args: Any, **options: Any) -> None:
            if self._folder is None or not isinstance(f, (str, os.PathLike)):
                original(obj, f, *args, **options)
                return
            try:
                with self._open_here(f, "wb") as file:
                    original(obj, file, *args, **options)
            except BaseException as error:
                hide_this_frame(error)
                raise

        self._torch = torch
        self._save = original
        torch.save = save

    def __enter__(self) -> JoinerFiles:
        self.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self.release()

    # Places.

    def _need_folder(self, name: str, path: Any) -> None:
        if self._hidden(os.path.dirname(name)):
            raise not_found(path)

    def _scratch(self, name: str) -> str:
        assert self._folder is not None
        self._count += 1
        return os.path.join(self._folder, f"{self._count}-{os.path.basename(name)}")

    # Functions that change something.

    def _mkdir(self, original: Call) -> Call:
        def make(path: Any, *args: Any, **options: Any) -> None:
            name = canonical(path)
            self._need_folder(name, path)
            if self._hidden(name) and os.path.lexists(name):
                self._now_there(name)
                return
            original(path, *args, **options)
            self._made.add(name)
            self._gone.discard(name)

        return self._guarded(original, make)

    def _symlink(self, original: Call) -> Call:
        def make(_: Any, path: Any, *args: Any, **options: Any) -> None:
            name = canonical(path)
            if self._hidden(name) and os.path.lexists(name):
                self._now_there(name)
                return
            original(_, path, *args, **options)
            self._made.add(name)

        return self._guarded(original, make, places=2)

    def _unlink(self, original: Call) -> Call:
        def remove(path: Any) -> None:
            name = canonical(path)
            if self._hidden(name):
                raise not_found(path)
            copy = self._copies.pop(name, None)
            if copy is not None:
                original(copy)
            elif self._is_own(name) or not (os.path.lexists(name) or self._is_ghost(name)) or _is_folder(name):
                original(path)
                self._made.discard(name)
            self._leave(name)

        return self._guarded(original, remove)

    def _rmdir(self, original: Call) -> Call:
        def remove(path: Any) -> None:
            name = canonical(path)
            if self._hidden(name):
                raise not_found(path)
            if self._is_own(name) or not (_is_folder(name) or self._is_ghost(name)):
                original(path)
                self._made.discard(name)
            self._leave(name)

        return self._guarded(original, remove)

    def _rename(self, original: Call) -> Call:
        def rename(src: Any, dst: Any) -> None:
            old = canonical(src)
            new = canonical(dst)
            if self._hidden(old):
                raise not_found(src)
            self._hidden(new)  # asked once, as the lost rank did
            copy = self._copies.pop(old, None)
            if copy is None and self._is_own(old) and (new in self._made or not os.path.lexists(new)):
                original(src, dst)
                self._made = {new + n[len(old) :] if is_within(n, old) else n for n in self._made}
            elif copy is None and _is_folder(old):
                self._now_there(new)
                if old in self._made:  # what it would become is there: the lost rank has made that
                    shutil.rmtree(old, ignore_errors=True)
            elif copy is None and not os.path.lexists(old) and not self._is_ghost(old):
                original(src, dst)  # raises what it would
            elif copy is not None or os.path.lexists(old):
                self._copies[new] = scratch = self._scratch(new)
                (shutil.copy2 if copy is None and old not in self._made else shutil.move)(copy or old, scratch)
                self._made.discard(old)
            self._leave(old)
            self._gone.discard(new)

        return self._guarded(original, rename, places=2)

    # Opening.

    def open(self, file: str, mode: str, *args: Any) -> IO[Any]:
        """Open a file as the script would."""
        opens = open if self._folder is None else self._open_here
        opened: IO[Any] = opens(file, mode, *args)
        return opened

    def is_aside(self, file: Any) -> bool:
        """Return whether `open` opens a scratch copy in the place of `file`."""
        return os.path.realpath(os.fsdecode(file)) in self._copies

    def _open(self, original: Call) -> Call:
        def act(file: Any, mode: Any = "r", *args: Any, **options: Any) -> IO[Any]:
            if len(args) > 5 or options.get("opener") is not None or not isinstance(mode, str):
                self._busy.on = False  # it is the opener that opens
                return original(file, mode, *args, **options)  # type: ignore[no-any-return]  # as open says
            reads = set(mode).isdisjoint("wax+")
            if set(mode).isdisjoint("wax"):
                scratch = self._to_read(file) if reads else self._found(file)
                scratch = None if scratch is file else scratch
            else:
                scratch = self._to_write(file, keeps="a" in mode, exclusive="x" in mode)
            if scratch is None:
                return original(file, mode, *args, **options)  # type: ignore[no-any-return]  # the same
            # With an opener the object's `name` stays the user's.
            options["opener"] = lambda _, flags: os.open(scratch, flags & ~os.O_EXCL, 0o600)
            opened: IO[Any] = original(file, mode, *args, **options)
            if reads:
                self._open_files.add_descriptor(opened.fileno(), file, reads=True)
            else:
                self._open_files.add(opened, file)
            return opened

        def here(*args: Any) -> IO[Any]:
            self._busy.on = True
            try:
                return act(*args)
            finally:
                self._busy.on = False

        self._open_here = here
        return self._guarded(original, act)

    def _os_open(self, original: Call) -> Call:
        def act(path: Any, flags: int, *args: Any, **options: Any) -> int:
            if not flags & _CREATES or flags & os.O_DIRECTORY:
                if flags & os.O_ACCMODE != os.O_RDONLY:
                    return int(original(self._found(path), flags, *args, **options))
                to_read = self._to_read(path)
                descriptor = int(original(to_read, flags, *args, **options))
                if to_read is not path:
                    self._open_files.add_descriptor(descriptor, path, reads=True)
                return descriptor
            keeps = not flags & os.O_TRUNC
            exclusive = bool(flags & os.O_EXCL)
            scratch = self._to_write(path, keeps=keeps, exclusive=exclusive)
            if scratch is None:
                return int(original(path, flags, *args, **options))
            descriptor = int(original(scratch, (flags & ~os.O_EXCL) | os.O_CREAT, 0o600))
            self._open_files.add_descriptor(descriptor, path)
            return descriptor

        return self._guarded(original, act)

    def _to_read(self, path: Any) -> Any:
        """Return the path at which the content is that the lost rank has read. Raises FileNotFoundError."""
        found = self._found(path)
        content = self._content(canonical(path))
        if content is None:
            return found
        scratch = self._scratch(canonical(path))
        with io.open(scratch, "xb") as file:  # noqa: UP020 - the real one of both
            file.write(content)
        return scratch

    def _to_write(self, path: Any, *, keeps: bool, exclusive: bool) -> str | None:
        """Return the scratch copy to open in place of `path`, or None if the file itself is to be opened."""
        name = canonical(path)
        self._need_folder(name, path)
        hidden = self._hidden(name) or (exclusive and not self._is_strict and name not in self._made | {*self._copies})
        real = os.path.realpath(name)
        try:
            if real in self._made or (exclusive and not hidden):
                if not os.path.lexists(real):
                    self._made.add(real)
                return None
            copy = self._copies.get(real)
            if copy is None and self._new_ones_too and not os.path.lexists(real) and _is_folder(os.path.dirname(real)):
                copy = self._copies[real] = self._scratch(real)
            elif copy is None or hidden:
                if not os.path.lexists(real):
                    self._made.add(real)
                    return None
                if not (stat.S_ISREG(os.stat(real).st_mode) and os.access(real, os.W_OK)):
                    return None
                copy = self._scratch(real)
                if keeps and not hidden:
                    shutil.copyfile(real, copy)
                self._copies[real] = copy
            self._gone.discard(name)
        except (OSError, ValueError):
            return None  # `open` tells
        return copy


def _new_folder(parent: str | None) -> tuple[str, int]:
    """Make the folder of copies, with the lock on it, as `owned_folder` has it."""
    path = os.path.join(parent or temporary_folder(os.environ), f"{scratch_prefix(os.getpid())}{os.urandom(6).hex()}")
    os.mkdir(path, 0o700)
    lock = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    with suppress(OSError):  # on a file system without locks: commands leave it alone then
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    return path, lock


def _is_folder(name: str) -> bool:
    return os.path.isdir(name) and not os.path.islink(name)
