from __future__ import annotations

from pathlib import Path

import pytest

from torchrelay.protocol.journals.kept import (
    WHOLE,
    KeptParts,
    Slots,
    buddy_folder,
    open_slot,
    own_folder,
    read_parts,
    whole_copies,
    write_parts,
)


def keep(folder: Path, boundary: int) -> KeptParts:
    parts = KeptParts(boundary, f"journal {boundary}".encode(), b"", "1 0")
    open_slot(folder)
    write_parts(folder, parts)
    (folder / WHOLE).touch()
    return parts


def fill(slots: Slots, boundary: int) -> KeptParts:
    place = slots.open(boundary)
    parts = keep(place, boundary)
    slots.filled(place, boundary)
    return parts


def test_copies_take_turns_and_both_are_found_with_those_for_a_buddy(tmp_path: Path) -> None:
    slots = Slots(own_folder(tmp_path, 1))
    kept = {b: fill(slots, b) for b in (5, 7, 15)}
    other = fill(Slots(buddy_folder(tmp_path, 3)), 15)
    found = whole_copies(tmp_path)
    assert sorted(parts.boundary for _, parts in found[1]) == [7, 15]
    assert kept[15] in [parts for _, parts in found[1]]
    assert found[3] == [(tmp_path / "buddy-of-3" / "0", other)]
    assert slots.boundaries() == {7, 15}


def test_a_process_that_comes_after_another_one_spares_the_newest_copy_that_it_finds(tmp_path: Path) -> None:
    before = Slots(own_folder(tmp_path, 1))
    for boundary in (5, 10):
        fill(before, boundary)
    after = Slots(own_folder(tmp_path, 1))
    after.open(12)
    assert [parts.boundary for _, parts in whole_copies(tmp_path)[1]] == [10]
    again = Slots(own_folder(tmp_path, 1))
    fill(again, 12)
    assert again.boundaries() == {10, 12}, "what was half filled counts for nothing"


def test_a_copy_of_the_same_boundary_is_written_over_and_later_ones_can_be_forgotten(tmp_path: Path) -> None:
    slots = Slots(own_folder(tmp_path, 1))
    for boundary in (5, 10, 10):
        fill(slots, boundary)
    assert slots.boundaries() == {5, 10}
    slots.forget(9)
    assert [parts.boundary for _, parts in whole_copies(tmp_path)[1]] == [5]
    assert slots.boundaries() == {5}
    slots.drop()
    assert not list(tmp_path.glob("*/*"))


def test_a_copy_counts_for_nothing_from_the_moment_that_it_is_written_over(tmp_path: Path) -> None:
    folder = own_folder(tmp_path, 0) / "0"
    keep(folder, 5)
    open_slot(folder)
    assert read_parts(folder) is None
    write_parts(folder, KeptParts(15, b"new", b"", ""))
    assert whole_copies(tmp_path) == {}


@pytest.mark.parametrize("name", ["journal", "set-up", "layout"])
def test_parts_of_different_boundaries_or_damaged_ones_are_no_copy(name: str, tmp_path: Path) -> None:
    folder, elsewhere = tmp_path / "rank-0" / "0", tmp_path / "elsewhere"
    keep(folder, 5)
    keep(elsewhere, 15)
    (folder / name).write_bytes((elsewhere / name).read_bytes())
    assert read_parts(folder) is None
    keep(folder, 5)
    data = bytearray((folder / name).read_bytes())
    data[0] ^= 1
    (folder / name).write_bytes(bytes(data))
    assert read_parts(folder) is None


def test_what_is_no_folder_of_a_rank_is_passed_by(tmp_path: Path) -> None:
    keep(tmp_path / "rank-x" / "0", 5)
    keep(tmp_path / "others" / "0", 5)
    assert whole_copies(tmp_path) == {}
    assert whole_copies(tmp_path / "missing") == {}
