"""What a joiner's set-up finds: told by what the lost rank had found, and by what set-up itself has made and removed."""

from __future__ import annotations

import os
from collections import deque

from torchrelay.shim.set_up.files_seen import FilesSeen


class FilesView:
    """All names are canonical paths."""

    def __init__(self, seen: FilesSeen) -> None:
        self._absent = dict(seen.absent)
        self._removed = dict(seen.removed)
        self._listed = {path: deque(names) for path, names in seen.listed.items()}
        self._told = dict(seen.found)
        self._read = {path: deque(contents) for path, contents in seen.read.items()}
        self._copies: dict[str, str] = {}
        self._made: set[str] = set()
        """By this set-up, for real."""
        self._gone: set[str] = set()
        self._left: set[str] = set()
        """All that this set-up has removed or renamed."""
        self._back: set[str] = set()
        """What exists, and seemed to set-up to be made by it."""

    def forget(self) -> None:
        """Forget the lost rank's record, as set-up is over: it does not tell what is asked from here on."""
        self._absent.clear()
        self._listed.clear()
        self._removed.clear()
        self._told.clear()
        self._read.clear()

    def _hidden(self, name: str) -> bool:
        """Return whether set-up finds nothing of that canonical name, asked once as the lost rank asked."""
        if name in self._copies or name in self._made or name in self._back:
            return False
        if name in self._gone or self._below_gone(name):
            return True
        left = self._absent.get(name, 0)
        if not left or self._is_yet_to_be_removed(name):
            return False
        self._absent[name] = left - 1
        return True

    def _is_yet_to_be_removed(self, name: str) -> bool:
        """Return whether the lost rank's set-up removed it or a folder around it, before it found nothing of that name."""
        while self._removed:
            if name in self._removed and name not in self._left:
                return True
            folder = os.path.dirname(name)
            if folder == name:
                break
            name = folder
        return False

    def _below_gone(self, name: str) -> bool:
        while self._gone and (folder := os.path.dirname(name)) != name:
            if folder in self._back:
                return False
            if folder in self._gone:
                return True
            name = folder
        return False

    def _is_ghost(self, name: str) -> bool:
        """Return whether the lost rank's set-up has removed it, so that this one has to find it first."""
        return name in self._removed and name not in self._left and not os.path.lexists(name)

    def _now_there(self, name: str) -> None:
        """Note that what exists counts as made by this set-up."""
        self._gone.discard(name)
        self._back.add(name)

    def _out_of_sight(self, name: str) -> bool:
        if name in self._copies or name in self._made or name in self._back:
            return False
        return name in self._gone or bool(self._absent.get(name))

    def _leave(self, name: str) -> None:
        self._back.discard(name)
        self._left.add(name)
        if os.path.lexists(name) or name in self._removed:
            self._gone.add(name)
