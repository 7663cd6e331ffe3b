"""`torchrelay history`."""

from __future__ import annotations

import asyncio
import json
import os
from pathlib import Path

import pytest
from jsonschema import validate
from support.kept_runs import finished, head, progress, write
from support.repository_script import script

from torchrelay.cli.folders.folder import Process
from torchrelay.cli.history.listing import KILLED, RUNNING, history
from torchrelay.protocol import events

T = 1_700_000_000.0


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("TORCHRELAY_HISTORY_DIR", str(tmp_path / "history"))
    monkeypatch.setenv("TORCHRELAY_STATE_DIR", str(tmp_path / "state"))
    monkeypatch.setenv("COLUMNS", "160")
    return tmp_path / "history"


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
    assert "and 2 older ones: --count 4" in capsys.readouterr().out
    assert asyncio.run(history(20, as_json=True, wanted="c2")) == 0
    assert [run["run_id"] for run in json.loads(capsys.readouterr().out)["runs"]] == ["c2"]
    assert asyncio.run(history(20, as_json=False, wanted="zz")) == 0
    assert "no run of the id or name zz is kept" in capsys.readouterr().out.replace("\n", " ")
