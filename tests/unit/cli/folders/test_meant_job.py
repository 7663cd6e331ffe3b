"""A command about a running job says what became of the one that no longer runs."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from support.kept_runs import SMALL_RUN, finished, head, write

from torchrelay.cli.folders.folder import KnownRun, Process, make_run_folder, write_run
from torchrelay.cli.folders.meant_job import meant_job
from torchrelay.protocol.errors import UserError


@pytest.fixture
def history(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("TORCHRELAY_HISTORY_DIR", str(tmp_path / "history"))
    return tmp_path / "history"


@pytest.mark.parametrize("wanted", ["ab", "pretrain"])
def test_a_job_that_is_over_is_said_to_be_with_its_end_and_what_shows_more(
    wanted: str, tmp_path: Path, history: Path
) -> None:
    write(history, [*SMALL_RUN, finished(1_700_000_100.0, 137, "rank 1 was killed by SIGKILL")], head("ab"))
    with pytest.raises(UserError) as refused:
        meant_job(tmp_path / "state", wanted)
    assert str(refused.value) == (
        "job ab (pretrain) is over: exit code 137: rank 1 was killed by SIGKILL\nhint: torchrelay report ab"
    )


def test_where_nothing_runs_the_latest_run_is_named(tmp_path: Path, history: Path) -> None:
    write(history, [finished(1_700_000_100.0)], head("aa", 1_700_000_000.0))
    write(history, [finished(1_700_000_300.0)], head("ab", 1_700_000_200.0))
    state = tmp_path / "state"
    with pytest.raises(UserError) as refused:
        meant_job(state, None)
    assert str(refused.value) == (
        f"no job of this user runs on this machine (looked in {state}); the latest, ab (pretrain), is over: done\n"
        "hint: torchrelay report ab"
    )


def test_a_name_that_no_run_ever_had_leads_to_the_list_of_runs(tmp_path: Path, history: Path) -> None:
    write(history, [finished(1_700_000_100.0)], head("ab"))
    with pytest.raises(UserError, match=r"none of the id or name lama is kept\nhint: torchrelay history$"):
        meant_job(tmp_path / "state", "lama")


def test_where_no_run_is_kept_either_it_is_said_how_to_start_one(tmp_path: Path, history: Path) -> None:
    with pytest.raises(UserError, match=r"runs on this machine \(looked in .*\)\nhint: torchrelay run --help$"):
        meant_job(tmp_path / "state", None)


def test_a_job_that_runs_is_meant_before_one_of_its_name_that_is_over(tmp_path: Path, history: Path) -> None:
    write(history, [finished(1_700_000_100.0)], head("ab"))
    own = Process.find(os.getpid())
    assert own is not None
    folder = make_run_folder(tmp_path / "state", "cd")
    write_run(folder, KnownRun("cd", "cd", "127.0.0.1", 1, ("run", "train.py"), (own,), name="pretrain"))
    assert meant_job(tmp_path / "state", "pretrain").run_id == "cd"
