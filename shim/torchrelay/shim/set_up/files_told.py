"""Questions of a joiner's set-up about files, answered as the lost rank's were."""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Callable, Iterable
from typing import Any

from torchrelay.shim.set_up.asked_paths import by_script, canonical, folders_changed, is_at_or_below, is_path, not_found
from torchrelay.shim.set_up.files_seen import (
    Busy,
    FilesSeen,
    question,
    question_of_access,
)
from torchrelay.shim.set_up.files_view import FilesView
from torchrelay.shim.set_up.folder_entries import Entries, FolderEntry

Call = Callable[..., Any]


class FilesTold(FilesView):
    """Answers the functions that ask for files. `_folder` is set while they are diverted."""

    def __init__(self, seen: FilesSeen) -> None:
        super().__init__(seen)
        self._folder: str | None = None
        self._busy = Busy()

    def _found(self, path: Any, *, follow: bool = True) -> Any:
        """Return the path at which the content is. Raises FileNotFoundError."""
        name = canonical(path)
        if self._hidden(name):
            raise not_found(path)
        if self._is_ghost(name):
            return self._ghost(self._removed[name])
        return self._copies.get(os.path.realpath(name) if follow else name, path) if self._copies else path

    def _ghost(self, kind: str) -> str:
        assert self._folder is not None
        ghost = os.path.join(self._folder, f"removed-{kind}")
        if not os.path.lexists(ghost):
            if kind == "dir":
                os.mkdir(ghost)
            else:
                io.open(ghost, "xb").close()  # noqa: UP020 - the real one
        return ghost

    def _answer(self, asked: str, name: str) -> Any:
        """Return what the lost rank was told of something that another rank has renamed or removed since; else None."""
        return None if self._is_own(name) else self._told.get((asked, name))

    def _content(self, name: str) -> bytes | None:
        """Return what the lost rank read there, if something else is there by now, or nothing; else None."""
        contents = self._read.get(name)
        if not contents or name in self._copies or self._is_own(name):
            return None
        content = contents.popleft() if len(contents) > 1 else contents[0]
        return content if content is not None and _holds_other(name, content) else None

    def _told_of_another(self, asked: str, name: str) -> Any:
        """Return what the lost rank was told of a file of which it has read another content than is there now; else None."""
        contents = self._read.get(name)
        if not contents or contents[0] is None or asked == "readlink" or name in self._copies:
            return None
        told = self._answer(asked, name)
        return told if told is not None and _holds_other(name, contents[0]) else None

    def _is_own(self, name: str) -> bool:
        """Return whether this set-up has made it or a folder around it, where processes that it has started may write, too."""
        return is_at_or_below(name, self._made)

    def _guarded(self, original: Call, act: Call, places: int = 1) -> Call:
        """Call `act(path, ...)` in the place of `original(path, ...)`, where the script asks by that many paths."""

        changes = original.__name__ in ("mkdir", "rmdir", "symlink", "unlink", "remove", "rename", "replace")

        def diverted(*args: Any, **options: Any) -> Any:
            paths = args[:places]
            concerned = len(paths) == places and all(map(is_path, paths)) and not self._busy.on
            concerned = concerned and all(v is None for n, v in options.items() if n.endswith("dir_fd"))
            if not concerned or not by_script(sys._getframe(1)):
                return original(*args, **options)
            self._busy.on = True
            try:
                return act(*args, **options)
            finally:
                self._busy.on = False
                if changes:
                    folders_changed()

        return diverted

    # Functions that ask.

    def _asking(self, original: Call) -> Call:
        def ask(path: Any, *args: Any, **options: Any) -> Any:
            asked = question(original.__name__, options)
            found = self._found(path, follow=asked == "stat")
            if (told := self._told_of_another(asked, canonical(path))) is not None:
                return told
            try:
                return original(found, *args, **options)
            except FileNotFoundError:
                told = self._answer(asked, canonical(path))
                if told is None:
                    raise
            return os.fsencode(told) if isinstance(told, str) and isinstance(path, bytes) else told

        return self._guarded(original, ask)

    def _on_one(self, original: Call) -> Call:
        def change(path: Any, *args: Any, **options: Any) -> Any:
            found = self._found(path, follow=options.get("follow_symlinks", True))
            if found is path and os.path.realpath(path) not in self._made and os.path.exists(path):
                return None
            return original(found, *args, **options)

        return self._guarded(original, change)

    def _access(self, original: Call) -> Call:
        def ask(path: Any, mode: Any, **options: Any) -> bool:
            try:
                found = self._found(path)
            except FileNotFoundError:
                return False
            if original(found, mode, **options):
                return True
            told = self._answer(question_of_access(mode), canonical(path))
            return bool(told) and not os.path.lexists(path)

        return self._guarded(original, ask)

    def _names(self, path: Any, listdir: Call) -> list[Any]:
        found = self._found(path)
        name = canonical(path)
        recorded = None if self._is_yet_to_be_removed(name) else self._listed.get(name)
        if found is not path:
            return list(listdir(found))
        if recorded:
            names: Iterable[str] = recorded.popleft()
            if os.path.lexists(path) and not os.path.isdir(path):
                listdir(path)  # raises what it would
        else:
            folder = os.path.realpath(os.fsdecode(path))
            names = [name for name in listdir(os.fsdecode(path)) if not self._out_of_sight(os.path.join(folder, name))]
        return [os.fsencode(name) for name in names] if isinstance(path, bytes) else list(names)

    def _listdir(self, original: Call) -> Call:
        act = self._guarded(original, lambda path: self._names(path, original))
        return lambda path=".": act("." if path is None else path)

    def _scandir(self, original: Call) -> Call:
        def ask(path: Any) -> Entries:
            folder = os.fspath(path)
            return Entries([FolderEntry(folder, name) for name in self._names(folder, os.listdir)])

        act = self._guarded(original, ask)
        return lambda path=".": act("." if path is None else path)


def _holds_other(name: str, content: bytes) -> bool:
    """Return whether a file has another content, or is not there."""
    try:
        with io.open(name, "rb") as file:  # noqa: UP020 - the real one of both
            return file.read(len(content) + 1) != content
    except OSError:  # or it is a folder by now
        return True
