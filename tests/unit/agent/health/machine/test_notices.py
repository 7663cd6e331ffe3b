from __future__ import annotations

from pathlib import Path

import pytest

from torchrelay.agent.health.machine.notices import LEAD_S, SCHEDULED, Notices
from torchrelay.protocol.health import kinds as k

NOW_S = 1_800_000_000.0


def told(notices: Notices) -> list[tuple[str, float]]:
    signals = notices.poll()
    assert all(s.kind == k.NODE_CONDITION for s in signals)
    return [(s.detail, s.value) for s in signals]


def schedule(root: Path, in_s: float, mode: str = "reboot", wall: str = "") -> None:
    (root / SCHEDULED).parent.mkdir(parents=True, exist_ok=True)
    text = f"USEC={int((NOW_S + in_s) * 1e6)}\nWARN_WALL=1\nMODE={mode}\n" + (f"WALL_MESSAGE={wall}\n" if wall else "")
    (root / SCHEDULED).write_text(text)


def test_a_scheduled_shutdown_is_told_and_one_that_was_cancelled_is_over(tmp_path: Path) -> None:
    notices = Notices((), tmp_path, lambda: NOW_S)
    assert told(notices) == []
    schedule(tmp_path, 60, wall="new fan")
    ((text, value),) = told(notices)
    assert text.startswith("shutdown (reboot at 2027-01-1")
    assert text.endswith(": new fan)")
    assert value == 1.0
    assert told(notices) == [], "once"
    (tmp_path / SCHEDULED).unlink()
    assert told(notices) == [(text, 0.0)]


@pytest.mark.parametrize(("in_s", "mode"), [(LEAD_S + 60, "poweroff"), (60, "dry-reboot")])
def test_a_shutdown_far_away_or_for_practice_is_none(tmp_path: Path, in_s: float, mode: str) -> None:
    schedule(tmp_path, in_s, mode)
    assert told(Notices((), tmp_path, lambda: NOW_S)) == []


def test_a_shutdown_counts_when_its_time_comes_near(tmp_path: Path) -> None:
    clock = [NOW_S]
    schedule(tmp_path, LEAD_S + 60)
    notices = Notices((), tmp_path, lambda: clock[0])
    assert told(notices) == []
    clock[0] += 61
    assert len(told(notices)) == 1


def test_a_file_of_notice_counts_while_it_is_there(tmp_path: Path) -> None:
    file, other = tmp_path / "maintenance", tmp_path / "other"
    notices = Notices((str(file), str(other)), tmp_path)
    file.write_text("rack 7 is moved at noon\nask Ann\n")
    assert told(notices) == [("notice (rack 7 is moved at noon)", 1.0)]
    other.write_text("")
    assert told(notices) == [(f"notice (rack 7 is moved at noon; {other})", 1.0)]
    file.unlink()
    other.unlink()
    assert [value for _, value in told(notices)] == [0.0]
