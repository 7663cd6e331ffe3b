from __future__ import annotations

import os
from pathlib import Path

from torchrelay.protocol.journals.journal import JournalWriter
from torchrelay.protocol.journals.kept import open_slot
from torchrelay.protocol.machine.private import make_private


def modes(folder: Path, top: Path) -> list[int]:
    below = [folder, *(parent for parent in folder.parents if top in parent.parents)]
    return [path.stat().st_mode & 0o777 for path in below]


def test_parents_that_are_missing_are_closed_to_others_too(tmp_path: Path) -> None:
    before = os.umask(0o022)
    try:
        make_private(tmp_path / "a" / "b" / "c")
        open_slot(tmp_path / "kept" / "rank-0" / "1")
        JournalWriter(tmp_path / "run" / "worker").close()
    finally:
        os.umask(before)
    assert modes(tmp_path / "a" / "b" / "c", tmp_path) == [0o700] * 3
    assert modes(tmp_path / "kept" / "rank-0" / "1", tmp_path) == [0o700] * 3
    assert modes(tmp_path / "run" / "worker", tmp_path) == [0o700] * 2


def test_folders_that_are_there_stay_as_they_are(tmp_path: Path) -> None:
    (tmp_path / "shared").mkdir()
    (tmp_path / "shared").chmod(0o755)
    make_private(tmp_path / "shared" / "own")
    make_private(tmp_path / "shared" / "own")
    assert modes(tmp_path / "shared" / "own", tmp_path) == [0o700, 0o755]
