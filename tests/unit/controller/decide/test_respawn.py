from __future__ import annotations

import dataclasses

import pytest

from torchrelay.controller.decide.respawn import Place, may_respawn

WELL = Place(rank=1, boundary=30, unusable="", recent=0, limit=3, at_step=1)


def test_a_process_that_died_on_a_healthy_device_is_started_again_in_its_place() -> None:
    assert may_respawn(WELL).may


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"limit": 0}, "no process is started"),
        ({"unusable": "uncorrectable memory errors"}, "uncorrectable memory errors"),
        ({"recent": 3}, "3 times within the hour (--respawn-limit 3)"),
        ({"at_step": 3}, "lost at step 30 3 times, the script or its data"),
    ],
)
def test_it_is_not_where_that_would_come_to_the_same_end(change: dict[str, object], why: str) -> None:
    verdict = may_respawn(dataclasses.replace(WELL, **change))  # type: ignore[arg-type]  # of any of its fields
    assert not verdict.may
    assert why in verdict.reason


def test_the_second_loss_at_a_step_may_be_chance() -> None:
    assert may_respawn(dataclasses.replace(WELL, at_step=2, recent=1)).may
