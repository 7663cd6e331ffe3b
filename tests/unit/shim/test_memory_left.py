from __future__ import annotations

from pathlib import Path

from torchrelay.shim.memory_left import is_short


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
