"""What fails although it was promised is an incident; what was announced is none."""

from __future__ import annotations

import dataclasses

import pytest

from torchrelay.controller.decide.protection.incident import Failure, is_incident
from torchrelay.protocol.messages import Coverage, RankGap
from torchrelay.protocol.names import ALONE, BARS_LATER, GOES_BACK, LEFT

PROMISED = Coverage("protected", "any rank", "train.py", 3, (), (), (), *([0.0] * 4), *([0] * 4))
FAILED = Failure("unplanned", "checkpoint", (1,), joins_failed=True, spares=1, uncovered=False)


def said(promised: Coverage = PROMISED, **changes: object) -> bool:
    return is_incident(promised, 3, dataclasses.replace(FAILED, **changes))  # type: ignore[arg-type]  # of any field


def gap(effect: str, rank: int) -> Coverage:
    return dataclasses.replace(PROMISED, level="partly", gaps=(RankGap((rank,), "k", effect, "t", "train.py", 3),))


def test_a_join_that_failed_where_it_was_promised_is_an_incident() -> None:
    assert said()
    assert said(kind="planned", outcome="abandoned")


@pytest.mark.parametrize("level", ["pending", "armed", "unprotected"])
def test_without_a_promise_there_is_none(level: str) -> None:
    assert not said(dataclasses.replace(PROMISED, level=level))


@pytest.mark.parametrize(
    ("kind", "outcome"), [("unplanned", "committed"), ("planned", "cleared"), ("resume", "abandoned")]
)
def test_what_went_well_or_began_the_job_is_none(kind: str, outcome: str) -> None:
    assert not said(kind=kind, outcome=outcome)


def test_a_gap_announces_what_happens_to_its_own_ranks_alone() -> None:
    assert not said(gap(BARS_LATER, 1))
    assert said(gap(BARS_LATER, 0))
    assert not said(gap(ALONE, 1))
    assert said(gap(ALONE, 1), kind="planned", outcome="abandoned")
    assert said(gap(LEFT, 1))
    assert said(gap(GOES_BACK, 1))


def test_losses_that_no_spare_could_make_good_were_never_promised_otherwise() -> None:
    assert said(joins_failed=False)
    assert not said(joins_failed=False, lost=(0, 1))
    assert said(joins_failed=False, lost=(0, 1), spares=2)
    assert not said(joins_failed=False, lost=(0, 1, 2), spares=3)
    assert not said(joins_failed=False, uncovered=True)
    assert not said(joins_failed=False, kind="planned", outcome="abandoned")


def test_ranks_that_came_apart_after_a_migration_are_one_whatever_was_promised() -> None:
    assert said(dataclasses.replace(PROMISED, level="unprotected"), joins_failed=False, apart=True)
