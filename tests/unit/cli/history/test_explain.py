"""`torchrelay explain`."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest
from jsonschema import validate
from support.kept_runs import SMALL_RUN, head, write
from support.repository_script import script

from torchrelay.cli.history.explain import explain
from torchrelay.protocol.errors import UserError


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("TORCHRELAY_HISTORY_DIR", str(tmp_path / "history"))
    monkeypatch.setenv("TORCHRELAY_STATE_DIR", str(tmp_path / "state"))
    monkeypatch.setenv("COLUMNS", "160")
    return tmp_path / "history"


def test_explain_tells_the_latest_migration_of_the_newest_run(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write(folder, SMALL_RUN, head())
    assert asyncio.run(explain(None, None, as_json=False)) == 0
    told = capsys.readouterr().out
    assert "Rank 2 moved" in told
    assert "What it cost" in told
    assert "by the controller" in told
    assert asyncio.run(explain("m1", "pretrain", as_json=True)) == 0
    printed = json.loads(capsys.readouterr().out)
    validate(printed, script("generate_schemas").schemas()["explain.schema.json"])
    assert printed["title"] == "Rank 0 was lost and replaced"


def test_what_is_not_there_is_said_with_what_is(folder: Path) -> None:
    with pytest.raises(UserError, match="no run is kept"):
        asyncio.run(explain(None, None, as_json=False))
    write(folder, SMALL_RUN, head())
    with pytest.raises(UserError, match="has no migration m9; it has m1, m2"):
        asyncio.run(explain("m9", None, as_json=False))
    with pytest.raises(UserError, match=r"no run zz is kept in .*; the newest ones are ab"):
        asyncio.run(explain(None, "zz", as_json=False))
