from __future__ import annotations

import json
from pathlib import Path

from torchrelay.cli.commands.check import CheckRun
from torchrelay.cli.commands.gone_through import Event, GoneThrough, read, view
from torchrelay.cli.display.summary import RunSummary
from torchrelay.protocol.words.level import Level

EPOCH = {"kind": "epoch", "text": "8 batches, 8 optimizer steps", "file": "/copy/train.py", "line": 9}


def text(seen: GoneThrough) -> str:
    return "\n".join(line.plain for line in view(seen))


def test_what_both_ranks_came_through_is_told_once_and_in_the_users_place(tmp_path: Path) -> None:
    (tmp_path / "seen").write_text(f"{json.dumps(EPOCH)}\n" * 2)
    (tmp_path / "model.pt").write_text("")
    (tmp_path / "made").write_text(f"{tmp_path / 'model.pt'}\n{tmp_path / 'gone-again'}\n{tmp_path}\n")
    seen = read(tmp_path / "seen", tmp_path / "made", True).told_as("/copy", "/own")
    assert seen == GoneThrough(
        (Event("epoch", "8 batches, 8 optimizer steps", "/own/train.py", 9),), (str(tmp_path / "model.pt"),), True
    )
    assert "/own/train.py:9: an epoch's end (8 batches, 8 optimizer steps)" in text(seen)
    assert "model.pt" in text(seen)


def test_what_was_not_come_through_is_named(tmp_path: Path) -> None:
    assert "not: an epoch's end, an evaluation, a save" in text(read(tmp_path / "seen", tmp_path / "made", True))
    assert "not: an evaluation, a save." in text(GoneThrough((Event("epoch", "", "", 0),)))


def test_why_loaders_could_not_be_cut_is_told() -> None:
    assert "could not be looked at: IndexError: 8" in text(GoneThrough(cut_failed="IndexError: 8"))


def attempt(
    code: int = 0, *, held: bool = False, is_late: bool = False, protection: Level = Level.ARMED, boundary: int = 5
) -> CheckRun:
    summary = RunSummary(held=held, protection=protection, boundary=boundary)
    return CheckRun(summary, code, is_late, False, GoneThrough(), "")


def test_a_script_that_does_not_bear_cut_loaders_is_looked_at_as_it_is() -> None:
    assert attempt(1).says_nothing
    assert attempt(boundary=0).says_nothing
    assert not attempt(1, held=True).says_nothing  # the ranks were ended where they stood
    assert not attempt(-9, is_late=True).says_nothing
    assert not attempt(boundary=-1, protection=Level.UNPROTECTED).says_nothing
    assert not attempt().says_nothing
