from __future__ import annotations

from pathlib import Path

import pytest

from torchrelay.agent.health.machine.cgroup import cgroup_file


@pytest.mark.parametrize(
    ("line", "there", "found"),
    [
        ("0::/job\n", "job/cpu.stat", "job/cpu.stat"),
        ("0::/../../of-the-host\n", "cpu.stat", "cpu.stat"),
        ("7:cpu,cpuacct:/job\n", "cpu/job/cpu.stat", "cpu/job/cpu.stat"),
        ("3:memory:/job\n", "memory/job/cpu.stat", ""),
    ],
)
def test_the_file_of_the_own_group_is_found(tmp_path: Path, line: str, there: str, found: str) -> None:
    root, proc = tmp_path / "groups", tmp_path / "cgroup"
    (root / there).parent.mkdir(parents=True)
    (root / there).write_text("")
    proc.write_text(line)
    assert cgroup_file(root, proc, "cpu", "cpu.stat", "cpu.stat") == (root / found if found else None)
