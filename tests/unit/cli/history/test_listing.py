"""`torchrelay history`."""

from __future__ import annotations

import asyncio
import json
import os
import time
from pathlib import Path

import pytest
from jsonschema import validate
from support.kept_runs import finished, head, progress, write
from support.repository_script import script

from torchrelay.cli.folders.folder import Process
from torchrelay.cli.folders.history import KILLED, RUNNING
from torchrelay.cli.history.listing import _day, history
from torchrelay.protocol import events

T = 1_700_000_000.0


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("TORCHRELAY_HISTORY_DIR", str(tmp_path / "history"))
    monkeypatch.setenv("TORCHRELAY_STATE_DIR", str(tmp_path / "state"))
    monkeypatch.setenv("COLUMNS", "160")
    return tmp_path / "history"


def test_checkpoints_that_were_asked_for_are_no_migrations(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    start = events.to_job_event(events.JobStarted("ab", 2, 1, ("n0",)), T)
    told = [start]
    for number, outcome in enumerate(("saved", "abandoned"), 1):
        at_s = T + 10.0 * number
        began = events.MigrationStarted(f"m{number}", "save", -1, "asked", number, "asked")
        ended = events.MigrationFinished(
            f"m{number}", "save", outcome, -1, "", (), (), 0, {}, 0.0, 0, number, "", "asked"
        )
        told += [events.to_job_event(began, at_s), events.to_job_event(ended, at_s + 1.0)]
    under_way = events.MigrationStarted("m3", "save", -1, "asked", 3, "asked")
    write(folder, [*told, events.to_job_event(under_way, T + 40.0)], head("a0"))
    assert asyncio.run(history(20, as_json=True)) == 0
    (run,) = json.loads(capsys.readouterr().out)["runs"]
    assert (run["migrations"], run["migrations_done"]) == (0, 0)


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
    told = json.loads(capsys.readouterr().out)
    validate(told, script("generate_schemas").schemas()["history.schema.json"])
    runs = {run["run_id"]: run for run in told["runs"]}
    assert list(runs) == ["d3", "c2", "b1", "a0"]
    assert (runs["a0"]["goodput"], runs["a0"]["steps"], runs["a0"]["end"]) == (0.8, 160, "done")
    assert runs["b1"]["end"] == "exit code 143: stopped by SIGTERM (asked for by alice)"
    assert (runs["c2"]["end"], runs["c2"]["lasted_s"], runs["d3"]["end"]) == (KILLED, 7.0, RUNNING)
    assert asyncio.run(history(2, as_json=False)) == 0
    assert "2 of 4 runs: --count 4 shows all" in capsys.readouterr().out
    assert asyncio.run(history(20, as_json=True, wanted="c2")) == 0
    assert [run["run_id"] for run in json.loads(capsys.readouterr().out)["runs"]] == ["c2"]
    assert asyncio.run(history(20, as_json=False, wanted="zz")) == 0
    assert "no run of the id or name zz is kept" in capsys.readouterr().out.replace("\n", " ")


def test_a_day_of_another_year_says_so() -> None:
    assert _day(T, T + 60.0) == time.strftime("%d %b %H:%M", time.localtime(T))
    assert _day(T, T + 400 * 86_400.0) == time.strftime("%d %b %Y", time.localtime(T))
