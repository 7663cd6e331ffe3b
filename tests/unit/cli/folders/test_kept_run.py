"""What is written of a run, and how much of it."""

from __future__ import annotations

import itertools
import json
from pathlib import Path

import pytest
from support.kept_runs import finished, head, progress, write

from torchrelay.cli.folders.history import choose_kept
from torchrelay.dashboard import event_writer
from torchrelay.protocol import events


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("TORCHRELAY_HISTORY_DIR", str(tmp_path / "history"))
    monkeypatch.setenv("TORCHRELAY_STATE_DIR", str(tmp_path / "state"))
    monkeypatch.setenv("COLUMNS", "160")
    return tmp_path / "history"


def test_progress_is_kept_more_and_more_seldom_and_reports_once(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(event_writer, "PROGRESS_KEPT", 10)
    write(folder, [progress(n / 2, n) for n in range(200)], head())
    lines = [json.loads(line) for line in choose_kept(folder, "ab").events.read_text().splitlines()]
    assert 20 < len(lines) < 45
    gaps = [after["time_s"] - before["time_s"] for before, after in itertools.pairwise(lines)]
    assert (gaps[0], gaps[-1]) == (1.0, 8.0)


def test_beyond_its_bound_a_run_has_its_end_alone(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(event_writer, "MOST_BYTES", 1000)
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
