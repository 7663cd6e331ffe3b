"""A run as a picture."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from support import told_runs as t

from torchrelay.cli.commands import plot as command
from torchrelay.dashboard.story import ROW_NAMES
from torchrelay.protocol.errors import UserError


@pytest.mark.parametrize("migrations", [True, False])
def test_a_run_is_drawn_with_and_without_migrations(tmp_path: Path, migrations: bool) -> None:
    told = t.small_run() if migrations else [*t.begins(), *t.progress(20, 60, 0, 3.0)]
    out = tmp_path / "run.png"
    assert command.plot(t.write(told, tmp_path / "events.jsonl"), out) == 0
    assert out.read_bytes().startswith(b"\x89PNG")


def test_every_phase_has_a_colour() -> None:
    assert ROW_NAMES.keys() <= command.COLORS.keys()


def test_what_cannot_be_drawn_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    events = t.write(t.begins()[:2], tmp_path / "events.jsonl")
    with pytest.raises(UserError, match="did no step"):
        command.plot(events, tmp_path / "run.png")
    whole = t.write(t.small_run(), tmp_path / "whole.jsonl")
    with pytest.raises(UserError, match=r"run\.nothing"):
        command.plot(whole, tmp_path / "run.nothing")
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(UserError, match=r"pip install 'torchrelay\[demo\]'"):
        command.plot(whole, tmp_path / "run.png")
