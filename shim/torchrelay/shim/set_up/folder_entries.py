"""What `os.scandir` gives, made of names: of folders whose content set-up does not see as it is."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from types import TracebackType
from typing import Any


class FolderEntry:
    """As `os.DirEntry`. What it tells is asked for when it is wanted."""

    def __init__(self, folder: Any, name: Any) -> None:
        self.name = name
        self.path = os.path.join(folder, name)

    def __fspath__(self) -> Any:
        return self.path

    def __repr__(self) -> str:
        return f"<DirEntry {self.name!r}>"

    def stat(self, *, follow_symlinks: bool = True) -> os.stat_result:
        return os.stat(self.path, follow_symlinks=follow_symlinks)

    def inode(self) -> int:
        return self.stat(follow_symlinks=False).st_ino

    def _mode(self, follow_symlinks: bool) -> int:
        try:
            return self.stat(follow_symlinks=follow_symlinks).st_mode
        except FileNotFoundError:
            return 0

    def is_dir(self, *, follow_symlinks: bool = True) -> bool:
        return stat.S_ISDIR(self._mode(follow_symlinks))

    def is_file(self, *, follow_symlinks: bool = True) -> bool:
        return stat.S_ISREG(self._mode(follow_symlinks))

    def is_symlink(self) -> bool:
        return stat.S_ISLNK(self._mode(False))

    def is_junction(self) -> bool:
        return False


class Entries:
    """As the iterator that `os.scandir` returns."""

    def __init__(self, entries: list[FolderEntry]) -> None:
        self._entries = iter(entries)

    def __iter__(self) -> Iterator[FolderEntry]:
        return self._entries

    def __next__(self) -> FolderEntry:
        return next(self._entries)

    def __enter__(self) -> Entries:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        self._entries = iter(())
