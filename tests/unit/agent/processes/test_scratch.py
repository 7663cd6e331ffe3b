from __future__ import annotations

import os
import tracemalloc
from pathlib import Path

import pytest

from torchrelay.agent.processes.scratch import remove_scratch
from torchrelay.protocol.machine.scratch import scratch_prefix, temporary_folder
from torchrelay.shim.set_up.scratch_files import JoinerFiles


def test_what_a_process_has_left_is_removed_and_nothing_of_others(tmp_path: Path) -> None:
    environment = {"TMPDIR": str(tmp_path)}
    left, other, kept = (tmp_path / name for name in ("torchrelay-41-a1", "torchrelay-411-b2", "kept"))
    for folder in (left, other, kept):
        folder.mkdir()
        (folder / "0").write_text("a copy")
    (tmp_path / "torchrelay-41-link").symlink_to(kept)
    remove_scratch(41, environment)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["kept", "torchrelay-41-link", "torchrelay-411-b2"]
    assert (kept / "0").read_text() == "a copy"


def test_nothing_is_kept_of_each_process_that_has_ended(tmp_path: Path) -> None:
    environment = {"TMPDIR": str(tmp_path)}
    remove_scratch(1, environment)
    tracemalloc.start()
    try:
        before, _ = tracemalloc.get_traced_memory()
        for pid in range(1000, 1200):
            remove_scratch(pid, environment)
        grown = tracemalloc.get_traced_memory()[0] - before
    finally:
        tracemalloc.stop()
    assert grown < 200 * 40


def test_a_folder_that_is_not_there_holds_nothing(tmp_path: Path) -> None:
    remove_scratch(41, {"TMPDIR": str(tmp_path / "none")})


def test_the_shim_makes_it_where_the_agent_looks_for_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    files = JoinerFiles()
    files.start()
    try:
        (made,) = os.listdir(tmp_path)
    finally:
        files.release()
    assert made.startswith(scratch_prefix(os.getpid()))
    assert temporary_folder(os.environ) == str(tmp_path)
    assert temporary_folder({"TMPDIR": str(tmp_path / "none")}) == "/tmp"
