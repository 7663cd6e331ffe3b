from __future__ import annotations

from pathlib import Path

import pytest

from torchrelay.agent.health.machine.memory import MemoryLimit
from torchrelay.protocol.health import kinds as k


def limit(folder: Path, line: str, file: str, text: str) -> tuple[MemoryLimit, Path]:
    proc, events = folder / "cgroup", folder / "fs" / file
    proc.write_text(line + "\n")
    events.parent.mkdir(parents=True, exist_ok=True)
    events.write_text(text)
    return MemoryLimit(folder / "fs", proc), events


@pytest.mark.parametrize(
    ("after", "kind"),
    [
        ("oom 0\noom_kill 0\n", ""),
        ("oom 1\noom_kill 1\n", k.OOM_PROGRAM),
        ("oom 0\noom_kill 1\n", k.OOM_NODE),
    ],
)
def test_the_counters_of_cgroup_v2_say_whose_fault_it_was(tmp_path: Path, after: str, kind: str) -> None:
    memory, events = limit(tmp_path, "0::/job", "job/memory.events", "oom 0\noom_kill 0\n")
    assert memory.killed() == ""
    events.write_text(after)
    assert memory.killed() == kind
    assert memory.killed() == "", "each kill is told once"


def test_the_counters_of_cgroup_v1_are_read_too(tmp_path: Path) -> None:
    memory, events = limit(tmp_path, "9:cpu,memory:/job", "memory/job/memory.oom_control", "under_oom 0\noom_kill 3\n")
    events.write_text("under_oom 0\noom_kill 4\n")
    assert memory.killed() == k.OOM_PROGRAM


def test_in_a_container_the_mounted_group_is_its_own(tmp_path: Path) -> None:
    memory, events = limit(tmp_path, "0::/kubepods/pod1/abc", "memory.events", "oom 0\noom_kill 0\n")
    events.write_text("oom 1\noom_kill 1\n")
    assert memory.killed() == k.OOM_PROGRAM


def test_without_control_groups_nothing_is_said(tmp_path: Path) -> None:
    assert MemoryLimit(tmp_path, tmp_path / "none").killed() == ""
