"""Files that a rank writes, or renames, by order."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from torchrelay.protocol.errors import CheckpointError
from torchrelay.shim.kept_files import BROKEN, keep, set_aside


def test_a_file_has_its_name_once_it_is_whole(tmp_path: Path) -> None:
    folder = tmp_path / "jit"
    keep(folder, "journal", b"one ", False)
    assert not (folder / "journal").exists()
    keep(folder, "journal", b"two", True)
    assert (folder / "journal").read_bytes() == b"one two"
    assert os.listdir(folder) == ["journal"]


def test_a_name_does_not_lead_out_of_the_folder(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="points out of"):
        keep(tmp_path, "../journal", b"", True)


def test_what_is_set_aside_can_be_found_and_what_cannot_be_is_named(tmp_path: Path) -> None:
    (tmp_path / "step-30.pt").write_bytes(b"x")
    (tmp_path / "step-40").mkdir()
    (tmp_path / "file").write_bytes(b"")
    reason = set_aside([str(tmp_path / "step-30.pt"), f"{tmp_path}/step-40/", f"{tmp_path}/gone", f"{tmp_path}/file/x"])
    assert sorted(os.listdir(tmp_path)) == ["file", f"step-30.pt{BROKEN}", f"step-40{BROKEN}"]
    assert "file/x: Not a directory" in reason
    assert "gone" not in reason
