"""Conditions of a TrainingJob: which hold, why, and since when."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from torchrelay.controller.kube.status.conditions import (
    Conditions,
    ConditionState,
    ConditionType,
    find_conditions,
    find_spares_ready,
)
from torchrelay.controller.status import JobSummary

WELL = JobSummary(2, 3, 5, 1, 1, "protected", "any rank can be replaced", 2, "m2", 0.25, {"running": 2}, ())


def told(spares: int | None = 1, is_over: bool = False, **changes: Any) -> dict[str, tuple[bool, str, str]]:
    found = find_conditions(dataclasses.replace(WELL, **changes), spares, is_over)
    return {kind.value: tuple(state) for kind, state in found.items()}


def test_a_job_that_is_as_was_asked_for() -> None:
    assert told() == {
        "Protected": (True, "Protected", "any rank can be replaced"),
        "Degraded": (False, "AsWanted", "any rank can be replaced"),
        "SparesReady": (True, "Ready", "1 of 1 spares are ready"),
    }


@pytest.mark.parametrize(
    ("changes", "protected", "degraded", "spares"),
    [
        ({"level": "partly", "reason": "r"}, (True, "Partly"), (True, "Partly"), (True, "Ready")),
        ({"level": "unprotected", "reason": "r"}, (False, "Unprotected"), (True, "Unprotected"), (True, "Ready")),
        ({"level": "pending", "reason": ""}, (False, "Pending"), (False, "Starting"), (True, "Ready")),
        ({"spares_warm": 0}, (True, "Protected"), (True, "SparesMissing"), (False, "NotReady")),
        ({"spares_warm": 0, "spares_total": 0}, (True, "Protected"), (True, "SparesMissing"), (False, "NotReady")),
        (
            {"spares": 0, "spares_warm": 0, "spares_total": 0},
            (True, "Protected"),
            (False, "AsWanted"),
            (False, "NoSpares"),
        ),
        ({"states": {"running": 1, "lost": 1}}, (True, "Protected"), (True, "RanksAway"), (True, "Ready")),
        ({"states": {"standing": 2}}, (True, "Protected"), (True, "RanksAway"), (True, "Ready")),
        ({"states": {"finished": 2}}, (True, "Protected"), (False, "AsWanted"), (True, "Ready")),
        ({"is_over": True}, (False, "Finished"), (False, "Finished"), (False, "Finished")),
    ],
)
def test_what_is_not_as_it_should_be_is_named_in_one_word(
    changes: dict[str, Any], protected: tuple[bool, str], degraded: tuple[bool, str], spares: tuple[bool, str]
) -> None:
    found = {kind: state[:2] for kind, state in told(**changes).items()}
    assert found == {"Protected": protected, "Degraded": degraded, "SparesReady": spares}


def test_no_condition_is_without_a_message() -> None:
    for level in ("pending", "armed", "unprotected", "partly", "protected"):
        assert all(message for _, _, message in told(level=level, reason="").values())


def test_the_time_of_a_condition_is_that_of_its_last_change_also_for_another_controller() -> None:
    well, away = find_conditions(WELL, 1, False), find_conditions(dataclasses.replace(WELL, spares_warm=0), 1, False)
    conditions = Conditions()
    conditions.as_status(well, 1_800_000_000.0)
    later = conditions.as_status(away, 1_800_000_060.0)
    since = {c["type"]: c["lastTransitionTime"] for c in later}
    assert since["Protected"] < since["SparesReady"] == since["Degraded"]
    again = Conditions(later).as_status(away, 1_800_000_300.0)
    assert {c["type"]: c["lastTransitionTime"] for c in again} == since
    assert {ConditionType(c["type"]) for c in again} == set(ConditionType)


@pytest.mark.parametrize(
    ("warm", "wanted", "state"),
    [
        (0, 0, ConditionState(False, "NoSpares", "nobody asks")),
        (1, 2, ConditionState(False, "NotReady", "1 of 2 spares are ready")),
        (2, 2, ConditionState(True, "Ready", "2 of 2 spares are ready")),
    ],
)
def test_spares_of_a_pool_are_ready_when_all_that_are_wanted_could_take_over(
    warm: int, wanted: int, state: ConditionState
) -> None:
    assert find_spares_ready(warm, wanted, "nobody asks") == state
