from __future__ import annotations

from pathlib import Path

import pytest

from torchrelay.protocol.kept import (
    WHOLE,
    KeptParts,
    buddy_folder,
    open_slot,
    read_parts,
    slot_folder,
    whole_copies,
    write_parts,
)

EVERY = 5


def keep(folder: Path, boundary: int) -> KeptParts:
    parts = KeptParts(boundary, f"journal {boundary}".encode(), b"", "1 0")
    open_slot(folder)
    write_parts(folder, parts)
    (folder / WHOLE).touch()
    return parts


def test_copies_take_turns_and_both_are_found_with_those_for_a_buddy(tmp_path: Path) -> None:
    kept = {b: keep(slot_folder(tmp_path, 1, b, EVERY), b) for b in (5, 10, 15)}
    other = keep(buddy_folder(tmp_path, 3, 15, EVERY), 15)
    found = whole_copies(tmp_path)
    assert sorted(parts.boundary for _, parts in found[1]) == [10, 15]
    assert kept[15] in [parts for _, parts in found[1]]
    assert found[3] == [(tmp_path / "buddy-of-3" / "1", other)]


def test_a_copy_counts_for_nothing_from_the_moment_that_it_is_written_over(tmp_path: Path) -> None:
    folder = slot_folder(tmp_path, 0, 5, EVERY)
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
