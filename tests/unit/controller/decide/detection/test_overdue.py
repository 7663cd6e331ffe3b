from __future__ import annotations

import pytest

from torchrelay.controller.decide.detection.hang import Culprit
from torchrelay.controller.decide.detection.overdue import DEFAULT_TIMEOUT_S, overdue

OPTION = "annotation hang-timeout"


def hangs(silent_s: float, *stack: str) -> Culprit:
    return Culprit(1, silent_s, f"rank 1 has shown no progress for {silent_s:.1f} s", "", stack)


@pytest.mark.parametrize(
    ("asked_s", "groups_s", "limit_s"),
    [
        (0.0, (), DEFAULT_TIMEOUT_S),
        (0.0, (0.0, 0.0), DEFAULT_TIMEOUT_S),  # of ranks that have not said it
        (0.0, (600.0, 60.0), 600.0),
        (90.0, (600.0,), 90.0),
        (900.0, (600.0,), 900.0),
    ],
)
def test_the_others_wait_as_long_as_was_asked_for_or_as_torch_lets_them(
    asked_s: float, groups_s: tuple[float, ...], limit_s: float
) -> None:
    assert overdue(hangs(limit_s - 1), "no way in", asked_s, OPTION, groups_s) == ""
    assert f"longer than {limit_s:g} s" in overdue(hangs(limit_s), "no way in", asked_s, OPTION, groups_s)


def test_the_reason_names_the_rank_where_it_is_and_why_nobody_takes_it_over() -> None:
    reason = overdue(
        hangs(60.0, "wait (train.py:3): lock.acquire()", "main (train.py:9)"), "no way in", 60.0, OPTION, ()
    )
    assert "rank 1 has shown no progress for 60.0 s" in reason
    assert OPTION in reason
    assert "rank 1 cannot be replaced: no way in" in reason
    assert reason.endswith("\n    wait (train.py:3): lock.acquire()\n    main (train.py:9)")
