"""Files that training writes and reads again: from when on they are state, what goes back, what is too large."""

from __future__ import annotations

from pathlib import Path

import pytest

from torchrelay.protocol.errors import StateMismatchError
from torchrelay.shim.capture.state.training_files import TrainingFiles

MOST_BYTES = 64 << 10


def extend(files: TrainingFiles, path: Path, text: str) -> None:
    files.writes(str(path), extends=True)
    with open(path, "a") as file:
        file.write(text)


def rewrite(files: TrainingFiles, path: Path, more: str) -> None:
    files.reads(str(path))
    before = path.read_text()
    files.writes(str(path), extends=False)
    path.write_text(before + more)


def test_a_file_that_is_read_and_then_written_is_state_from_the_next_boundary_on(tmp_path: Path) -> None:
    files, path = TrainingFiles(), tmp_path / "history"
    path.write_text("a")
    files.at_boundary()
    rewrite(files, path, "b")
    assert files.is_new
    assert files.now() == {}
    files.at_boundary()
    assert not files.is_new
    state = files.now()
    assert state == {str(path): b"ab"}
    rewrite(files, path, "c")
    files.put(state)
    assert path.read_text() == "ab"


def test_the_first_such_step_goes_back_too(tmp_path: Path) -> None:
    files, history, lines = TrainingFiles(), tmp_path / "history", tmp_path / "lines"
    history.write_text("a")
    lines.write_text("1")
    files.at_boundary()
    rewrite(files, history, "b")
    extend(files, lines, "2")
    files.reads(str(lines))
    files.put({})
    assert (history.read_text(), lines.read_text()) == ("a", "1")
    files.at_boundary()
    assert {Path(path).name for path in files.now()} == {"history", "lines"}


def test_files_that_are_only_written_or_only_read_are_no_state(tmp_path: Path) -> None:
    files, log, data = TrainingFiles(), tmp_path / "log", tmp_path / "data"
    data.write_text("data")
    files.at_boundary()
    extend(files, log, "line")
    files.reads(str(data))
    files.at_boundary()
    extend(files, log, "line")
    files.put(files.now())
    assert log.read_text() == "lineline"
    assert not files.is_any


def test_a_large_file_is_named_only_where_a_step_that_is_done_again_would_read_another_content(tmp_path: Path) -> None:
    files, saved, table = TrainingFiles(), tmp_path / "saved", tmp_path / "table"
    for path in (saved, table):
        path.write_bytes(bytes(MOST_BYTES + 1))
    files.at_boundary()
    files.writes(str(saved), extends=False)
    files.reads(str(saved))
    assert not files.too_large
    files.reads(str(table))
    files.writes(str(table), extends=False)
    assert list(files.too_large) == [str(table)]


def test_one_that_has_become_too_large_is_not_put_back(tmp_path: Path) -> None:
    files, path = TrainingFiles(), tmp_path / "lines"
    path.write_text("a")
    files.at_boundary()
    rewrite(files, path, "b")
    files.at_boundary()
    rewrite(files, path, "c" * MOST_BYTES)
    files.at_boundary()
    state = files.now()
    assert list(files.too_large) == [str(path)]
    rewrite(files, path, "d")
    with pytest.raises(StateMismatchError, match="too large to be put back"):
        files.put(state)


def test_one_that_is_kept_open_is_written_on_behind_what_was_put_back(tmp_path: Path) -> None:
    files, path = TrainingFiles(), tmp_path / "lines"
    with open(path, "w") as kept:
        print("1", file=kept, flush=True)
        files.at_boundary()
        assert files.may_have_changed(path.stat().st_mtime_ns)
        files.reads_while_written(str(path))
        files.at_boundary()
        state = files.now()
        print("2", file=kept, flush=True)
        files.put(state)
        print("3", file=kept, flush=True)
    assert path.read_text() == "1\n3\n"


def test_what_was_not_there_is_not_taken_away(tmp_path: Path) -> None:
    path = tmp_path / "lines"
    path.write_text("1")
    with pytest.raises(StateMismatchError, match="it is there again"):
        TrainingFiles().put({str(path): None})
