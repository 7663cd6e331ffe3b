"""`torchrelay events` about a job that is over."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest
from support.kept_runs import SMALL_RUN, finished, head, write

from torchrelay.cli.folders.folder import NotRunningError
from torchrelay.cli.jobs.events import show_events
from torchrelay.protocol.errors import UserError


@pytest.fixture
def history(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("TORCHRELAY_HISTORY_DIR", str(tmp_path / "history"))
    monkeypatch.setenv("TORCHRELAY_STATE_DIR", str(tmp_path / "state"))
    return tmp_path / "history"


@pytest.mark.parametrize("wanted", [None, "ab", "pretrain"])
def test_what_is_kept_of_a_job_that_is_over_is_told(
    wanted: str | None, history: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write(history, [finished(1_600_000_000.0)], head("aa", 1_600_000_000.0))
    write(history, [*SMALL_RUN, finished(1_800_000_000.0)], head("ab"))
    assert asyncio.run(show_events(wanted, follow=True, as_json=False)) == 0
    told = capsys.readouterr().out
    assert "moved to n0.s1: no step redone" in told
    assert told.endswith(" the job is over: done\n")
    assert asyncio.run(show_events(wanted, follow=False, as_json=True)) == 0
    (folder,) = history.glob("*-ab")
    lines = capsys.readouterr().out.splitlines()
    assert [json.loads(line) for line in lines] == [
        json.loads(line) for line in (folder / "events.jsonl").read_text().splitlines()
    ]
    assert json.loads(lines[-1])["name"] == "job_finished"


def test_how_a_job_failed_is_told_last(history: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write(history, [*SMALL_RUN, finished(1_800_000_000.0, 1, "rank 0: ValueError")], head("ab"))
    assert asyncio.run(show_events("ab", follow=False, as_json=False)) == 0
    assert capsys.readouterr().out.endswith(" error: the job is over: exit code 1: rank 0: ValueError\n")


def test_a_line_that_was_cut_off_is_left_out(history: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write(history, [*SMALL_RUN], head("ab"))
    (folder,) = history.glob("*-ab")
    with open(folder / "events.jsonl", "a") as file:
        file.write('{"time_s": 1.0, "na')
    assert asyncio.run(show_events("ab", follow=False, as_json=True)) == 0
    assert all(json.loads(line)["name"] for line in capsys.readouterr().out.splitlines())


def test_without_a_run_that_runs_or_is_kept_there_is_nothing_to_tell(history: Path) -> None:
    with pytest.raises(UserError, match="hint: torchrelay run --help") as refused:
        asyncio.run(show_events(None, follow=False, as_json=False))
    assert isinstance(refused.value, NotRunningError)
