"""Runs that are kept: what is written of them, how much of it stays, and what the commands say."""

from __future__ import annotations

import asyncio
import itertools
import json
import os
from pathlib import Path

import pytest
from support import told_runs

from torchrelay.cli.controller_client.follow import json_line
from torchrelay.cli.folders import history as store
from torchrelay.cli.folders import kept_run
from torchrelay.cli.folders.folder import Process
from torchrelay.cli.folders.history import choose_kept, events_file, history_folder, kept_runs, prune
from torchrelay.cli.folders.kept_run import RunHead, RunWriter
from torchrelay.cli.history.cost import Assumed
from torchrelay.cli.history.explain import explain
from torchrelay.cli.history.listing import KILLED, RUNNING, history
from torchrelay.cli.history.report import ReportForm, report
from torchrelay.protocol import events
from torchrelay.protocol.errors import UserError
from torchrelay.protocol.messages import JobEvent

T = 1_700_000_000.0
SMALL_RUN = [events.to_job_event(what, time_s) for time_s, what in told_runs.small_run()]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("TORCHRELAY_HISTORY_DIR", str(tmp_path / "history"))
    monkeypatch.setenv("TORCHRELAY_STATE_DIR", str(tmp_path / "state"))
    monkeypatch.setenv("COLUMNS", "160")
    return tmp_path / "history"


def head(run_id: str = "ab", started_s: float = 1_700_000_000.0, process: Process | None = None) -> RunHead:
    return RunHead(run_id, "pretrain", run_id, "/data", ("run", "train.py"), started_s, process)


def write(folder: Path, told: list[JobEvent], of: RunHead) -> list[str]:
    """Return what was said of it."""
    said: list[str] = []
    writer = RunWriter(folder, of, json_line, said.append)
    for event in told:
        writer.take(event)
    writer.close()
    return said


def progress(time_s: float, boundary: int) -> JobEvent:
    return events.to_job_event(events.ProgressMade(boundary, 2.0, 2, 1), time_s)


def finished(time_s: float, exit_code: int = 0, reason: str = "all ranks are done") -> JobEvent:
    return events.to_job_event(events.JobFinished(exit_code, reason), time_s)


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


def test_progress_is_kept_more_and_more_seldom_and_reports_once(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kept_run, "PROGRESS_KEPT", 10)
    write(folder, [progress(n / 2, n) for n in range(200)], head())
    lines = [json.loads(line) for line in choose_kept(folder, "ab").events.read_text().splitlines()]
    assert 20 < len(lines) < 45
    gaps = [after["time_s"] - before["time_s"] for before, after in itertools.pairwise(lines)]
    assert (gaps[0], gaps[-1]) == (1.0, 8.0)


def test_beyond_its_bound_a_run_has_its_end_alone(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kept_run, "MOST_BYTES", 1000)
    logs = [events.to_job_event(events.Log("warning", "x" * 80), float(n)) for n in range(100)]
    write(folder, [*logs, finished(101.0)], head())
    lines = choose_kept(folder, "ab").events.read_text().splitlines()
    assert len("\n".join(lines)) < 1200
    assert json.loads(lines[-1])["name"] == "job_finished"


def test_what_cannot_be_written_is_said_once_and_costs_nothing_else(tmp_path: Path) -> None:
    (tmp_path / "taken").write_text("a file")
    said = write(tmp_path / "taken", [finished(1.0), finished(2.0)], head())
    assert len(said) == 1
    assert "the run goes on" in said[0]


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


def test_history_says_how_each_run_went(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    start = events.to_job_event(events.JobStarted("ab", 2, 1, ("n0",)), T)
    write(
        folder,
        [start, progress(T + 20.0, 0), progress(T + 100.0, 160), finished(T + 100.0)],
        head("a0", 1_700_000_000.0),
    )
    asked = events.to_job_event(events.JobFinished(143, "stopped by SIGTERM", "alice"), T + 9.0)
    write(folder, [start, asked], head("b1", 1_700_000_001.0))
    write(folder, [start, progress(T + 7.0, 3)], head("c2", 1_700_000_002.0))
    write(folder, [start], head("d3", 1_700_000_003.0, Process.find(os.getpid())))
    assert asyncio.run(history(20, as_json=True)) == 0
    runs = {run["run_id"]: run for run in json.loads(capsys.readouterr().out)["runs"]}
    assert list(runs) == ["d3", "c2", "b1", "a0"]
    assert (runs["a0"]["goodput"], runs["a0"]["steps"], runs["a0"]["end"]) == (0.8, 160, "done")
    assert runs["b1"]["end"] == "exit code 143: stopped by SIGTERM (asked for by alice)"
    assert (runs["c2"]["end"], runs["c2"]["lasted_s"], runs["d3"]["end"]) == (KILLED, 7.0, RUNNING)
    assert asyncio.run(history(2, as_json=False)) == 0
    assert "and 2 older ones: --count 4" in capsys.readouterr().out


def test_explain_tells_the_latest_migration_of_the_newest_run(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write(folder, SMALL_RUN, head())
    assert asyncio.run(explain(None, None, as_json=False)) == 0
    told = capsys.readouterr().out
    assert "Rank 2 moved" in told
    assert "What it cost" in told
    assert "by the controller" in told
    assert asyncio.run(explain("m1", "pretrain", as_json=True)) == 0
    assert json.loads(capsys.readouterr().out)["title"] == "Rank 0 was lost and replaced"


def test_what_is_not_there_is_said_with_what_is(folder: Path) -> None:
    with pytest.raises(UserError, match="no run is kept"):
        asyncio.run(explain(None, None, as_json=False))
    write(folder, SMALL_RUN, head())
    with pytest.raises(UserError, match="has no migration m9; it has m1, m2"):
        asyncio.run(explain("m9", None, as_json=False))
    with pytest.raises(UserError, match=r"no run zz is kept in .*; the newest ones: ab"):
        asyncio.run(explain(None, "zz", as_json=False))


def test_a_report_compares_with_restarts_under_times_that_it_names(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write(folder, SMALL_RUN, head())
    assert asyncio.run(report("ab", Assumed(1800.0, 300.0), ReportForm.JSON)) == 0
    told = json.loads(capsys.readouterr().out)
    assert (told["losses_survived"], told["moves_done"], told["ranks"]) == (1, 1, 4)
    assert told["restart_device_h"] == pytest.approx(4 * 2 * (900 + 300) / 3600)
    assert told["spare_device_h"] == pytest.approx(2 * told["wall_s"] / 3600)
    assert told["lost_device_h"] == pytest.approx(4 * (told["standstill_s"] + told["redone_s"]) / 3600)
    left = told["restart_device_h"] - told["lost_device_h"] - told["spare_device_h"]
    assert told["saved_device_h"] == pytest.approx(left)
    assert [fault["name"] for fault in told["faults"]] == ["m1", "m2"]
    assert asyncio.run(report("ab", Assumed(1800.0, 300.0), ReportForm.MARKDOWN)) == 0
    page = capsys.readouterr().out
    assert "| m1 | unplanned | committed | 1.6 s | 1 | rank 0 (n0.w0) was killed by SIGKILL |" in page
    assert "a checkpoint every 30 min, a restart of 5 min: assumed" in page


def test_a_report_says_when_protection_cost_more_than_it_saved(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write(folder, SMALL_RUN, head())
    assert asyncio.run(report(None, Assumed(0.0, 1.0), ReportForm.TEXT)) == 0
    assert "cost more than it saved" in capsys.readouterr().out


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
