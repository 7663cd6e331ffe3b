"""Is there room for what a failure would need: journals of a process that takes over, and a just-in-time checkpoint?"""

from __future__ import annotations

from collections.abc import Mapping

from torchrelay.protocol.messages import Room, RoomLeft

MARGIN_BYTES = 64 << 10
"""Of files and folders beside what is counted."""


def joiner_lacks(rooms: Mapping[str, RoomLeft], journals_bytes: int) -> str:
    """Why no machine has room for the journals of a process that takes over a rank; empty if one has, or has not said.

    `rooms`: by node. `journals_bytes`: shared memory that those of one rank take.
    """
    lacks = [_lack(room.memory, journals_bytes + MARGIN_BYTES) for room in rooms.values()]
    return lacks[0] if lacks and all(lacks) else ""


def checkpoint_lacks(rooms: Mapping[str, RoomLeft], state_bytes: int) -> str:
    """Why no folder has room for what ranks hold; empty if one has on all machines that have said."""
    by_folder = list(zip(*(room.folders for room in rooms.values())))
    lacks = [next(filter(None, (_lack(room, state_bytes) for room in folder)), "") for folder in by_folder]
    return "; ".join(dict.fromkeys(lacks)) if lacks and all(lacks) else ""


def _lack(room: Room, need_bytes: int) -> str:
    if room.problem:
        return f"{room.path}: {room.problem}"
    if room.free_bytes < need_bytes:
        return f"{room.path} has {_size(room.free_bytes)} left, and {_size(need_bytes)} are needed"
    return ""


def _size(value_bytes: int) -> str:
    mebibytes = value_bytes / (1 << 20)
    return f"{mebibytes:.1f} MiB" if mebibytes < 1024 else f"{mebibytes / 1024:.1f} GiB"
