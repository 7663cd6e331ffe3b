"""Where a lost process is started again, and where that would only be lost again."""

from __future__ import annotations

import dataclasses

import pytest

from torchrelay.controller.decide.replacement.respawn import LostPlace, comes_again, may_respawn

WELL = LostPlace(rank=1, unusable="", recent=0, limit=3)


def test_a_well_place_gets_a_new_process_and_is_told_how_many_are_left() -> None:
    verdict = may_respawn(dataclasses.replace(WELL, recent=1))
    assert verdict.may
    assert verdict.reason == "rank 1 waits for a process that is started in its place (2 of 3 within the hour)"


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"limit": 0}, "no process is started"),
        ({"recent": 3}, "3 times within the hour (--respawn-limit 3)"),
        ({"unusable": "GPU-1 is in quarantine"}, "GPU-1 is in quarantine"),
    ],
)
def test_the_reason_is_said_where_no_process_is_started(change: dict[str, object], reason: str) -> None:
    verdict = may_respawn(dataclasses.replace(WELL, **change))  # type: ignore[arg-type]  # of any of its fields
    assert not verdict.may
    assert reason in verdict.reason


@pytest.mark.parametrize("times", [0, 1, 2])
def test_a_loss_that_has_come_again_once_is_no_pattern(times: int) -> None:
    assert comes_again(1, 7, times) == ""


def test_a_loss_that_comes_again_twice_at_the_same_step_ends_the_job_with_its_story() -> None:
    ends = [f"p{n} ended by signal 11" for n in range(3)]
    assert comes_again(1, 7, 3, ends) == (
        "rank 1 was lost at step 7 3 times (p0 ended by signal 11; p1 ended by signal 11; p2 ended by signal 11): "
        "the script or its data would meet the same end again"
    )
