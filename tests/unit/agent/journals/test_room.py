"""How much room is left, and when that is told."""

from __future__ import annotations

import dataclasses
import os
from pathlib import Path

import pytest

from torchrelay.agent.journals.room import RoomWatch, look, room_of
from torchrelay.protocol.messages import Room, RoomLeft

GIB = 1 << 30


def test_room_is_that_of_the_file_system_also_where_the_folder_is_not_made_yet(tmp_path: Path) -> None:
    room = room_of(tmp_path / "later" / "on")
    assert room.problem == ""
    stat = os.statvfs(tmp_path)
    assert room.free_bytes == pytest.approx(stat.f_bavail * stat.f_frsize, rel=0.2)


def test_a_folder_that_has_become_a_file_has_none(tmp_path: Path) -> None:
    (tmp_path / "jit").touch()
    assert room_of(tmp_path / "jit").problem == f"{tmp_path}/jit is no folder"


def test_what_was_told_is_told_again_when_it_is_news_or_somebody_new_listens(tmp_path: Path) -> None:
    told: list[RoomLeft] = []
    watch = RoomWatch(tmp_path, (tmp_path,), told.append)
    watch.again()
    assert told == []
    first = RoomLeft(Room("/m", GIB), (Room("/j", GIB),))
    watch.saw(first)
    watch.saw(dataclasses.replace(first, memory=Room("/m", GIB - GIB // 20)))
    assert told == [first]
    less = dataclasses.replace(first, folders=(Room("/j", GIB // 2),))
    watch.saw(less)
    gone = dataclasses.replace(less, folders=(Room("/j", GIB // 2, "is no folder"),))
    watch.saw(gone)
    assert told == [first, less, gone]
    watch.again()
    assert told[-1] == gone
    assert len(told) == 4


def test_all_folders_are_looked_at(tmp_path: Path) -> None:
    found = look(tmp_path, (tmp_path / "a", tmp_path / "b"))
    assert [room.path for room in (found.memory, *found.folders)] == [
        str(tmp_path),
        str(tmp_path / "a"),
        str(tmp_path / "b"),
    ]
