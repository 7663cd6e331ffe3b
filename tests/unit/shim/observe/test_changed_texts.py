"""A file that was changed since it was loaded is named, before a new process has to load it."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any

import pytest

from torchrelay.protocol.names import NO_JOINER
from torchrelay.shim.observe.changed_texts import ROUND_S, ChangedTexts
from torchrelay.shim.script import sites

LONG_AGO = (1_000_000_000, 1_000_000_000)


class Loaded:
    """Files that a script has loaded, and the looks at them."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.texts: dict[str, int] = {}
        self.loaded_from: dict[str, tuple[str, float]] = {}
        self.looks = ChangedTexts(self.texts, self.loaded_from)
        self.now_s = 0.0

    def load(self, name: str, text: str = "x = 1\n", *, by_the_job: bool = False) -> Path:
        path = self.folder / name
        path.write_text(text)
        if not by_the_job:
            os.utime(path, LONG_AGO)
        self.texts[name] = sites.checksum(text.encode())
        self.loaded_from[name] = str(path), path.stat().st_mtime
        return path

    def found(self) -> list[str]:
        """After every file has had its turn."""
        self.looks.look(self.now_s)
        self.now_s += ROUND_S
        self.looks.look(self.now_s)
        return list(self.looks.found)


@pytest.fixture
def loaded(tmp_path: Path) -> Loaded:
    return Loaded(tmp_path)


def test_an_edit_is_told_and_taken_back_once_the_file_is_as_it_was(loaded: Loaded) -> None:
    script = loaded.load("train.py")
    loaded.load("model.py")
    assert loaded.found() == []
    assert loaded.looks.gaps() == []
    script.write_text("x = 2\n")
    assert loaded.found() == ["train.py: changed since this rank loaded it"]
    (gap,) = loaded.looks.gaps()
    assert (gap.kind, gap.effect, gap.file) == ("text", NO_JOINER, "train.py")
    script.write_text("x = 1\n")
    assert loaded.found() == []
    assert loaded.looks.gaps() == []


def test_a_file_that_another_one_was_put_in_the_place_of_is_seen_though_size_and_time_are_the_same(
    loaded: Loaded,
) -> None:
    script = loaded.load("train.py")
    assert loaded.found() == []
    other = loaded.folder / "other"
    other.write_text("x = 2\n")
    shutil.copystat(script, other)
    other.replace(script)
    assert loaded.found() == ["train.py: changed since this rank loaded it"]


def test_a_file_that_was_touched_and_holds_the_same_is_no_change(loaded: Loaded) -> None:
    script = loaded.load("train.py")
    assert loaded.found() == []
    os.utime(script)
    assert loaded.found() == []


def test_a_change_from_before_the_first_look_is_seen(loaded: Loaded) -> None:
    loaded.load("train.py").write_text("x = 2\n")
    assert loaded.found() == ["train.py: changed since this rank loaded it"]


def test_a_file_that_is_gone_is_told_unless_the_job_makes_it_itself(loaded: Loaded) -> None:
    loaded.load("train.py").unlink()
    loaded.load("made.py", by_the_job=True).unlink()
    assert loaded.found() == ["train.py: it is not there any more"]
    loaded.load("train.py")
    assert loaded.found() == []


def test_files_have_their_turns_one_after_another_and_later_ones_come_in(
    loaded: Loaded, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(10):
        loaded.load(f"{number}.py")
    looked_at: list[str] = []
    plain = os.stat

    def stat(path: str, **how: Any) -> os.stat_result:
        looked_at.append(path)
        return plain(path, **how)

    monkeypatch.setattr(os, "stat", stat)
    loaded.looks.look(0.0)
    assert looked_at == [], "a step looks at no more files than its time is worth"
    loaded.looks.look(ROUND_S / 10)
    assert len(looked_at) == 1
    loaded.looks.look(ROUND_S / 2)
    assert len(looked_at) == 5
    loaded.looks.look(ROUND_S)
    assert len(looked_at) == len(set(looked_at)) == 10
    loaded.load("late.py").write_text("")
    monkeypatch.undo()
    assert loaded.found() == ["late.py: changed since this rank loaded it"]


def test_a_file_that_cannot_be_read_now_says_nothing(loaded: Loaded, monkeypatch: pytest.MonkeyPatch) -> None:
    loaded.load("train.py")

    def stat(path: str, **how: Any) -> os.stat_result:
        raise OSError(116, "Stale file handle")

    monkeypatch.setattr(os, "stat", stat)
    found = loaded.found()
    monkeypatch.undo()
    assert found == []
