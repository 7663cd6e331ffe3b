"""What a shell offers behind `torchrelay`."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest
import typer
from support.kept_runs import SMALL_RUN, head, write

from torchrelay.cli.app.program import app
from torchrelay.cli.folders import folder


@pytest.fixture
def offered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Callable[[str], list[str]]:
    monkeypatch.setenv("TORCHRELAY_STATE_DIR", str(tmp_path / "state"))
    monkeypatch.setenv("TORCHRELAY_HISTORY_DIR", str(tmp_path / "history"))
    monkeypatch.setenv("_TORCHRELAY_COMPLETE", "complete_fish")
    monkeypatch.setenv("_TYPER_COMPLETE_FISH_ACTION", "get-args")
    monkeypatch.setenv("COLUMNS", "10000")  # help that is longer than a line is typer's own affair

    def complete(typed: str) -> list[str]:
        monkeypatch.setenv("_TYPER_COMPLETE_ARGS", typed)
        with pytest.raises(SystemExit, match="0"):
            typer.main.get_command(app).main([], prog_name="torchrelay")
        return [line.partition("\t")[0] for line in capsys.readouterr().out.splitlines() if line]

    return complete


def test_commands_and_options_are_offered(offered: Callable[[str], list[str]]) -> None:
    assert offered("torchrelay mig") == ["migrate"]
    assert offered("torchrelay quarantine ") == ["list", "add", "clear"]
    assert offered("torchrelay run --buddy-") == ["--buddy-every", "--buddy-sync"]


def test_jobs_that_run_and_runs_that_are_kept_are_offered_by_name_and_id(
    tmp_path: Path, offered: Callable[[str], list[str]]
) -> None:
    here = folder.Process.find(os.getpid())
    assert here is not None
    path = folder.make_run_folder(tmp_path / "state", "7e70abbe")
    run = folder.KnownRun("7e70abbe", path.name, "127.0.0.1", 1, ("run", "train.py"), (here,), name="pretrain")
    folder.write_run(path, run)
    assert offered("torchrelay status ") == ["pretrain", "7e70abbe"]
    assert offered("torchrelay stop --run 7e") == ["7e70abbe"]
    assert offered("torchrelay report ") == []
    kept = head()
    write(tmp_path / "history", SMALL_RUN, kept)
    assert offered("torchrelay report ") == [kept.name, kept.run_id]
