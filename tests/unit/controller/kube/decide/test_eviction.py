"""When evictions are held off."""

from __future__ import annotations

import dataclasses

import pytest

from torchrelay.controller.kube.decide.eviction import EvictionSituation, judge_eviction

FINE = EvictionSituation(runs=True, movable=True, spares=1, leaving_s=0.0, patience_s=300.0)


def test_a_job_whose_ranks_can_move_holds_evictions_off() -> None:
    assert judge_eviction(FINE).hold_off
    assert judge_eviction(dataclasses.replace(FINE, leaving_s=300.0)).hold_off


@pytest.mark.parametrize(
    ("changed", "why"),
    [
        ({"runs": False}, "does not run"),
        ({"movable": False}, "cannot be moved"),
        ({"spares": 0}, "no spare"),
        ({"leaving_s": 301.0}, "301 s"),
    ],
)
def test_a_drain_does_not_wait_for_what_cannot_be(changed: dict[str, float], why: str) -> None:
    verdict = judge_eviction(dataclasses.replace(FINE, **changed))  # type: ignore[arg-type]  # of any of its fields
    assert not verdict.hold_off
    assert why in verdict.reason
