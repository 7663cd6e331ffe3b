"""Ranks that wait for each other because we let them wait in front of an update are told from ranks that hang."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

import pytest

from torchrelay.controller.config import Policy
from torchrelay.controller.decide.detection.hang import Vital, threshold_s
from torchrelay.controller.decide.detection.unlike_updates import unlike_updates
from torchrelay.protocol.messages import LinkState

STEP_S = 1.0
POLICY = Policy()
LONG_S = threshold_s(STEP_S, POLICY) + POLICY.explain_grace_s + 0.1


def waits(rank: int, phase: str, **changes: object) -> Vital:
    vital = Vital(rank, 5, 5, phase, True, "S", LONG_S, LONG_S, 0.1)
    return dataclasses.replace(vital, **changes)  # type: ignore[arg-type]  # of any of its fields


def ended(rank: int) -> Vital:
    return waits(rank, "finished", waiting=False, silent_s=0.1, idle_s=0.1)


def reason_of(*vitals: Vital, blamed: Mapping[int, int] | None = None, is_protected: bool = True) -> str:
    return unlike_updates(vitals, STEP_S, POLICY, blamed or {}, is_protected=is_protected)


def test_one_that_is_through_waits_for_one_that_waits_for_it() -> None:
    assert reason_of(waits(0, "left"), waits(1, "gate")) == (
        "ranks make unlike numbers of updates: rank 0 went on without another one after 5, and rank 1 came to one more"
    )


def test_one_that_has_ended_comes_to_no_update() -> None:
    reason = reason_of(waits(0, "gate", gates_passed=7), ended(1), waits(2, "left", gates_passed=6), waits(3, "gate"))
    assert reason.endswith("ranks 1, 2 went on without another one after 5 to 6, and ranks 0, 3 came to one more")


@pytest.mark.parametrize("phase", ["body", "after"])
def test_where_nobody_can_be_replaced_it_is_enough_that_all_wait(phase: str) -> None:
    assert reason_of(waits(0, phase), waits(1, "gate", count=9), is_protected=False)
    assert not reason_of(waits(0, phase), waits(1, "gate", count=9))


@pytest.mark.parametrize(("count", "lets_go"), [(12, True), (11, True), (9, False)])
def test_in_one_step_the_one_that_has_called_more_waits_for_the_other_unless_it_hangs(
    count: int, *, lets_go: bool
) -> None:
    """The one at its gate has counted 12: 10 up to it, and 2 for the gate. A wait that it has been through counts 2 as well."""
    vitals = waits(0, "body", count=count), waits(1, "gate", count=12)
    again = {0: 5}
    assert bool(reason_of(*vitals, blamed=again)) is lets_go
    assert not reason_of(*vitals, waits(2, "gate", count=12, boundary=6), blamed=again)
    assert not reason_of(*vitals)
    assert not reason_of(*vitals, blamed={0: 4, 1: 5}), "it was replaced in another step, or another rank was"


@pytest.mark.parametrize(
    "vitals",
    [
        (waits(0, "gate"), waits(1, "gate")),
        (waits(0, "left"), waits(1, "left")),
        (ended(0), waits(1, "left")),
        (waits(0, "left"), waits(1, "gate"), waits(2, "after")),  # the first two may wait for the third
        (waits(0, "left"), waits(1, "gate"), waits(2, "update", waiting=False)),
        (waits(0, "left", silent_s=1.0), waits(1, "gate")),
        (waits(0, "left", idle_s=0.1), waits(1, "gate")),
        (waits(0, "left", news_age_s=POLICY.stale_progress_s + 1), waits(1, "gate")),
        (waits(0, "left", waiting=False), waits(1, "gate")),  # it evaluates, or saves
    ],
)
def test_nobody_goes_on_without_the_others_as_long_as_that_may_be_right(vitals: tuple[Vital, ...]) -> None:
    assert reason_of(*vitals) == ""


def test_links_are_looked_at_first() -> None:
    soon_s = threshold_s(STEP_S, POLICY) + 0.1
    unknown = [waits(r, phase, silent_s=soon_s, links=None) for r, phase in enumerate(("left", "gate"))]
    assert reason_of(*unknown) == ""
    ends = [("10.0.0.1:7", "10.0.0.2:9"), ("10.0.0.2:9", "10.0.0.1:7")]
    lost = [LinkState(local, remote, unanswered_s=60.0, probed_s=60.0, silent_s=60.0) for local, remote in ends]
    assert reason_of(waits(0, "left", links=(lost[0],)), waits(1, "gate", links=(lost[1],))) == ""
