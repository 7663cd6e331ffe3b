"""`torchrelay report`."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest
from jsonschema import validate
from support.kept_runs import SMALL_RUN, head, write
from support.repository_script import script

from torchrelay.cli.history.cost import Assumed
from torchrelay.cli.history.report import ReportForm, report, which_form


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("TORCHRELAY_HISTORY_DIR", str(tmp_path / "history"))
    monkeypatch.setenv("TORCHRELAY_STATE_DIR", str(tmp_path / "state"))
    monkeypatch.setenv("COLUMNS", "160")
    return tmp_path / "history"


def test_a_report_compares_with_restarts_under_times_that_it_names(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write(folder, SMALL_RUN, head())
    assert asyncio.run(report("ab", Assumed(1800.0, 300.0), ReportForm.JSON)) == 0
    told = json.loads(capsys.readouterr().out)
    validate(told, script("generate_schemas").schemas()["report.schema.json"])
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


def test_json_is_a_form_that_has_an_option_of_its_own() -> None:
    assert which_form("text", as_json=True) is which_form("json") is ReportForm.JSON
