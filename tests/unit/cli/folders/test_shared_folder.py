"""Folders that several machines' commands remove."""

from __future__ import annotations

from pathlib import Path

import pytest

from torchrelay.cli.folders.shared_folder import remove_if_empty


def test_an_empty_folder_is_removed_and_one_with_a_file_stays(tmp_path: Path) -> None:
    empty, full = tmp_path / "empty", tmp_path / "full"
    empty.mkdir()
    full.mkdir()
    (full / "file").touch()
    for folder in (empty, full, tmp_path / "missing"):
        remove_if_empty(folder)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["full"]
    assert (full / "file").exists()


def test_a_folder_that_another_machine_removes_at_the_same_moment_is_no_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, really = tmp_path / "jit", Path.rmdir
    folder.mkdir()
    monkeypatch.setattr(Path, "rmdir", lambda path: (really(path), really(path)))
    remove_if_empty(folder)
    assert not folder.exists()
