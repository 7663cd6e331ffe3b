"""Is there room for what a failure would need?"""

from __future__ import annotations

from torchrelay.controller.decide.protection.room import checkpoint_lacks, joiner_lacks
from torchrelay.protocol.messages import Room, RoomLeft

MIB = 1 << 20
WIDE, TIGHT = RoomLeft(Room("/dev/shm/a", 900 * MIB)), RoomLeft(Room("/dev/shm/b", 2 * MIB))


def test_a_process_can_take_over_as_long_as_one_machine_has_room() -> None:
    assert joiner_lacks({}, 5 * MIB) == ""
    assert joiner_lacks({"n0": WIDE}, 5 * MIB) == ""
    assert joiner_lacks({"n0": TIGHT, "n1": WIDE}, 5 * MIB) == ""
    assert joiner_lacks({"n0": TIGHT}, 5 * MIB) == "/dev/shm/b has 2.0 MiB left, and 5.1 MiB are needed"
    assert joiner_lacks({"n0": TIGHT}, MIB) == ""


def folders(*rooms: Room) -> RoomLeft:
    return RoomLeft(Room("/dev/shm", MIB), rooms)


def test_a_checkpoint_needs_one_folder_that_all_machines_can_write() -> None:
    gone, full, wide = Room("/a", 0, "/a is no folder"), Room("/a", 4 * MIB), Room("/b", 4096 * MIB)
    assert checkpoint_lacks({}, 2048 * MIB) == ""
    assert checkpoint_lacks({"n0": folders()}, 2048 * MIB) == ""
    assert checkpoint_lacks({"n0": folders(gone, wide)}, 2048 * MIB) == ""
    assert checkpoint_lacks({"n0": folders(full)}, 2048 * MIB) == "/a has 4.0 MiB left, and 2.0 GiB are needed"
    assert checkpoint_lacks({"n0": folders(gone)}, 0) == "/a: /a is no folder"
    assert checkpoint_lacks({"n0": folders(wide), "n1": folders(gone)}, MIB) == "/a: /a is no folder"
