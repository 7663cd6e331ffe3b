"""Watches how much room is left where journals lie, and where a just-in-time checkpoint would go."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from pathlib import Path

from torchrelay.protocol.messages import Room, RoomLeft

EVERY_S = 5.0
NEWS_SHARE = 1 / 16
"""A change by less than this share of what was told last is not told."""


class RoomWatch:
    """Looks at the room. `memory`: the folder of journals. `tell(room)` is called with each look that is news."""

    def __init__(self, memory: Path, folders: tuple[Path, ...], tell: Callable[[RoomLeft], None]) -> None:
        self._memory = memory
        self._folders = folders
        self._tell = tell
        self._told: RoomLeft | None = None
        self.latest: RoomLeft | None = None

    async def run(self) -> None:
        """Look again and again, without end. A file system that does not answer holds up only this."""
        while True:
            self.saw(await asyncio.to_thread(look, self._memory, self._folders))
            await asyncio.sleep(EVERY_S)

    def saw(self, now: RoomLeft) -> None:
        """Take a look's result, and tell it if it is news."""
        self.latest = now
        if self._told is None or is_news(self._told, now):
            self._told = now
            self._tell(now)

    def again(self) -> None:
        """Tell the latest news again: the controller that was told is gone."""
        if self._told is not None:
            self._tell(self._told)


def is_news(told: RoomLeft, now: RoomLeft) -> bool:
    pairs = [(told.memory, now.memory), *zip(told.folders, now.folders)]
    return any(
        one.problem != other.problem or abs(one.free_bytes - other.free_bytes) > NEWS_SHARE * one.free_bytes
        for one, other in pairs
    )


def look(memory: Path, folders: tuple[Path, ...]) -> RoomLeft:
    """Return the room that is left. Nothing is written."""
    return RoomLeft(room_of(memory), tuple(map(room_of, folders)))


def room_of(folder: Path) -> Room:
    """Return the room of the folder, or of the folder in which it would be made."""
    at = folder
    while not os.path.lexists(at) and at != at.parent:
        at = at.parent
    try:
        if not at.is_dir():
            return Room(str(folder), 0, f"{at} is no folder")
        file_system = os.statvfs(at)
    except OSError as e:
        return Room(str(folder), 0, f"{at} cannot be looked at ({e.strerror})")
    if not os.access(at, os.W_OK | os.X_OK):
        return Room(str(folder), 0, f"nothing can be written into {at}")
    return Room(str(folder), file_system.f_bavail * file_system.f_frsize)
