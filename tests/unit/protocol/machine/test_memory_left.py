from __future__ import annotations

import os
from pathlib import Path

from torchrelay.protocol.machine.memory_left import is_short, no_room_for, taken_by


def machine(folder: Path, total_kib: int, available_kib: int) -> Path:
    file = folder / "meminfo"
    file.write_text(f"MemTotal: {total_kib} kB\nMemAvailable: {available_kib} kB\n")
    return file


def container(folder: Path, limit: str, used: int, cache: int) -> Path:
    (folder / "memory.max").write_text(limit)
    (folder / "memory.current").write_text(str(used))
    (folder / "memory.stat").write_text(f"anon 5\ninactive_file {cache}\n")
    return folder


def test_a_machine_that_is_nearly_full(tmp_path: Path) -> None:
    assert is_short(machine(tmp_path, 1000, 50), tmp_path)
    assert not is_short(machine(tmp_path, 1000, 500), tmp_path)


def test_a_container_that_is_nearly_full_on_a_machine_that_is_not(tmp_path: Path) -> None:
    plenty = machine(tmp_path, 1000, 900)
    assert is_short(plenty, container(tmp_path, "1000", 960, 10))
    assert not is_short(plenty, container(tmp_path, "1000", 960, 500)), "the cache can go"
    assert not is_short(plenty, container(tmp_path, "max\n", 960, 0))


def test_where_nothing_can_be_read_nothing_is_short(tmp_path: Path) -> None:
    assert not is_short(tmp_path / "none", tmp_path / "none")


def test_what_is_needed_counts_before_it_is_taken(tmp_path: Path) -> None:
    file = machine(tmp_path, 4 << 20, 2 << 20)
    assert no_room_for(1 << 30, file, tmp_path) == ""
    told = no_room_for(2 << 30, file, tmp_path)
    assert told == "2.0 GiB of memory are left on this machine, and 2.0 GiB may be needed"


def test_what_a_process_has_for_itself() -> None:
    before = taken_by(os.getpid())
    more = bytearray(64 << 20)
    for page in range(0, len(more), 4096):
        more[page] = 1
    assert taken_by(os.getpid()) - before > 48 << 20
    assert taken_by(0) == 0
