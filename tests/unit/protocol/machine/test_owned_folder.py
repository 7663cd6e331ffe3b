from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
from support.forked import forked

from torchrelay.protocol.machine.owned_folder import OwnedFolder, lock_folder, owned_folder, remove_left
from torchrelay.protocol.names import TEMPORARY_PREFIX

OWNS = """
import sys
from torchrelay.protocol.machine.owned_folder import OwnedFolder
folder = OwnedFolder("test")
(folder.path / "file").write_text("its")
print(folder.path, flush=True)
sys.stdin.read()
"""


@pytest.fixture
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    return tmp_path


def test_a_folder_is_there_until_its_end(temporary: Path) -> None:
    with owned_folder("test") as folder:
        (folder / "file").write_text("its")
        assert folder.parent == temporary
        assert folder.name.startswith(TEMPORARY_PREFIX)
    assert list(temporary.iterdir()) == []


def test_what_a_killed_process_has_left_is_removed_and_what_a_living_one_has_is_not(temporary: Path) -> None:
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen([sys.executable, "-c", OWNS], **pipes, text=True) as owner:
        assert owner.stdout is not None
        folder = Path(owner.stdout.readline().strip())
        remove_left(temporary, TEMPORARY_PREFIX)
        assert (folder / "file").exists()
        owner.kill()
    assert (folder / "file").exists()
    remove_left(temporary, TEMPORARY_PREFIX)
    assert list(temporary.iterdir()) == []


def test_a_forked_child_that_outlives_its_parent_keeps_the_folder(temporary: Path) -> None:
    reading, writing = os.pipe()
    folder = OwnedFolder("test")
    (folder.path / "file").write_text("its")

    def stay() -> None:
        os.close(writing)
        os.read(reading, 1)  # until the parent lets go

    child = forked(stay)
    os.close(reading)
    assert folder._lock is not None  # as when the parent has died
    os.close(folder._lock)
    remove_left(temporary, TEMPORARY_PREFIX)
    assert (folder.path / "file").exists()
    os.close(writing)
    os.waitpid(child, 0)
    remove_left(temporary, TEMPORARY_PREFIX)
    assert not folder.path.exists()


def test_an_empty_folder_is_left_alone_until_its_maker_has_had_time_to_lock_it(temporary: Path) -> None:
    new, old = temporary / f"{TEMPORARY_PREFIX}new", temporary / f"{TEMPORARY_PREFIX}old"
    new.mkdir()
    old.mkdir()
    os.utime(old, (0, 0))
    remove_left(temporary, TEMPORARY_PREFIX)
    assert list(temporary.iterdir()) == [new]


def test_links_files_and_other_names_are_left_alone(temporary: Path) -> None:
    others = temporary / "others"
    others.mkdir()
    (others / "file").write_text("somebody's")
    (temporary / f"{TEMPORARY_PREFIX}link").symlink_to(others)
    (temporary / f"{TEMPORARY_PREFIX}file").write_text("a file")
    remove_left(temporary, TEMPORARY_PREFIX)
    assert (temporary / f"{TEMPORARY_PREFIX}link").is_symlink()
    assert (temporary / f"{TEMPORARY_PREFIX}file").exists()
    assert (others / "file").exists()


def test_a_folder_is_locked_by_one_at_a_time(tmp_path: Path) -> None:
    lock = lock_folder(tmp_path / "folder")
    assert lock is not None
    assert lock_folder(tmp_path / "folder") is None
    os.close(lock)
    again = lock_folder(tmp_path / "folder")
    assert again is not None
    os.close(again)
