"""Where runs are kept, how many of them, and which one is meant."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from support.kept_runs import SMALL_RUN, finished, head, write

from torchrelay.cli.folders import history as store
from torchrelay.cli.folders.folder import Process
from torchrelay.cli.folders.history import choose_kept, events_file, history_folder, kept_runs, prune
from torchrelay.protocol.errors import UserError


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("TORCHRELAY_HISTORY_DIR", str(tmp_path / "history"))
    monkeypatch.setenv("TORCHRELAY_STATE_DIR", str(tmp_path / "state"))
    monkeypatch.setenv("COLUMNS", "160")
    return tmp_path / "history"


def test_runs_are_kept_where_the_user_says_and_nowhere_if_that_is_empty(tmp_path: Path) -> None:
    home = {"HOME": "/home/u"}
    assert history_folder({"TORCHRELAY_HISTORY_DIR": str(tmp_path), **home}) == tmp_path
    assert history_folder({"TORCHRELAY_HISTORY_DIR": "", **home}) is None
    assert history_folder({"TORCHRELAY_STATE_DIR": "/s", **home}) is None
    assert history_folder({"TORCHRELAY_STATE_DIR": "/s", "TORCHRELAY_HISTORY_DIR": "/h"}) == Path("/h")
    assert history_folder({"XDG_STATE_HOME": "/x", **home}) == Path("/x/torchrelay/history")
    assert history_folder(home) == Path("/home/u/.local/state/torchrelay/history")
    assert history_folder({}) is None
    assert write(tmp_path, [finished(1.0)], head()) == []
    assert [run.head for run in kept_runs(tmp_path)] == [head()]


def test_a_run_is_read_again_as_it_was_told(folder: Path) -> None:
    assert write(folder, SMALL_RUN, head()) == []
    record = choose_kept(folder, "pretrain").record()
    assert list(record.migrations) == ["m1", "m2"]
    assert record.boundary in (346, 347)  # progress is kept once a second


def test_the_oldest_runs_go_first_and_none_that_runs(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store, "RUNS_KEPT", 2)
    here = Process.find(os.getpid())
    for number, run_id in enumerate(("a0", "b1", "c2", "d3", "e4")):
        write(folder, [finished(1.0)], head(run_id, 1_700_000_000.0 + number, here if run_id == "a0" else None))
    prune(folder)
    assert [run.head.run_id for run in kept_runs(folder)] == ["e4", "d3", "a0"]
    monkeypatch.setattr(store, "MOST_BYTES", 1)
    prune(folder)
    assert [run.head.run_id for run in kept_runs(folder)] == ["e4", "a0"]


def test_a_run_is_meant_by_its_file_its_name_or_as_the_newest(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="name a file of `run --events`"):
        events_file(os.environ, None)
    write(folder, SMALL_RUN, head("a0", 1_700_000_000.0))
    write(folder, SMALL_RUN, head("b1", 1_700_000_001.0))
    assert events_file(os.environ, None) == choose_kept(folder, "b1").events
    assert events_file(os.environ, "a0") == choose_kept(folder, "a0").events
    (tmp_path / "own.jsonl").touch()
    assert events_file(os.environ, str(tmp_path / "own.jsonl")) == tmp_path / "own.jsonl"
    with pytest.raises(UserError, match=r"^zz is no file of `run --events`, and no run zz is kept in"):
        events_file(os.environ, "zz")
