from __future__ import annotations

import dataclasses

import pytest

from torchrelay.controller.config import Policy
from torchrelay.controller.decide.hang import Vital, find_culprit

STEP_S = 1.0
LIMIT_S = 3 * STEP_S + 5
POLICY = Policy()


def waits(rank: int, silent_s: float, **changes: object) -> Vital:
    vital = Vital(rank, 5, 5, "body", True, "S", silent_s, silent_s, 0.1)
    return dataclasses.replace(vital, **changes)  # type: ignore[arg-type]


def works(rank: int, silent_s: float, **changes: object) -> Vital:
    return waits(rank, silent_s, waiting=False, **changes)


def culprit_of(*vitals: Vital) -> int | None:
    found = find_culprit(vitals, STEP_S, POLICY)
    return None if found is None else found.rank


def test_who_does_not_wait_and_does_nothing_while_peers_wait_is_the_culprit() -> None:
    assert culprit_of(waits(0, LIMIT_S), works(1, LIMIT_S + 1), waits(2, LIMIT_S)) == 1


@pytest.mark.parametrize(
    "vitals",
    [
        (waits(0, LIMIT_S - 0.1), works(1, LIMIT_S + 1)),  # peers have not waited long enough
        (waits(0, LIMIT_S + 60), works(1, 0.2)),  # rank 1 evaluates: its loop moves
        (works(0, LIMIT_S + 60), works(1, LIMIT_S + 60)),  # nobody waits: a slow step
        (waits(0, LIMIT_S + 60), waits(1, LIMIT_S + 60)),  # all wait: nobody is to blame
        (waits(0, LIMIT_S + 60), works(1, LIMIT_S + 60, idle_s=0.3)),  # rank 1 computes, if without a sign of a loop
        (waits(0, LIMIT_S + 20), works(1, LIMIT_S + 20, phase="data")),  # slow storage
        (waits(0, LIMIT_S + 20), works(1, LIMIT_S + 20, phase="after")),  # saving, uploading
        (waits(0, LIMIT_S + 60), works(1, LIMIT_S + 60, phase="finished")),
        (waits(0, LIMIT_S + 60), works(1, LIMIT_S + 60, phase="set-up")),
        (waits(0, LIMIT_S + 60), works(1, LIMIT_S + 60, phase="standing")),
        (waits(0, LIMIT_S + 60), works(1, LIMIT_S + 60, news_age_s=4.0)),  # its agent is silent: no news is no news
        (waits(0, LIMIT_S + 60, news_age_s=4.0), works(1, LIMIT_S + 60)),
    ],
)
def test_no_false_alarm(vitals: tuple[Vital, ...]) -> None:
    assert culprit_of(*vitals) is None


def test_storage_that_stays_away_is_a_hang_in_the_end() -> None:
    assert culprit_of(waits(0, 61), works(1, 61, phase="data")) == 1


def test_a_rank_that_only_burns_processor_time_is_given_up_in_the_end() -> None:
    silent_s = POLICY.busy_hang_s + 1
    assert culprit_of(waits(0, silent_s), works(1, silent_s, idle_s=0.1)) == 1


def test_a_stopped_process_is_found_after_a_second_if_peers_wait() -> None:
    stopped = works(1, 1.1, process_state="T", stopped_s=1.1)
    assert culprit_of(waits(0, 0.3), stopped) == 1
    assert culprit_of(works(0, 0.3), stopped) is None
    assert culprit_of(waits(0, 0.3), dataclasses.replace(stopped, stopped_s=0.9)) is None


def test_peers_that_are_done_wait_for_a_stopped_one_as_well() -> None:
    stopped = works(1, 1.1, process_state="T", stopped_s=1.1, phase="after")
    assert culprit_of(works(0, 0.3, phase="finished"), stopped) == 1


def test_a_process_stopped_inside_a_collective_is_found_too() -> None:
    assert culprit_of(waits(0, 1.0), waits(1, 1.5, process_state="T", stopped_s=1.5)) == 1


def test_of_several_the_one_that_is_furthest_behind_is_blamed() -> None:
    behind = works(2, LIMIT_S + 1, boundary=4, gates_passed=4)
    assert culprit_of(waits(0, LIMIT_S), works(1, LIMIT_S + 2), behind) == 2
    assert culprit_of(waits(0, LIMIT_S), works(1, LIMIT_S + 1), works(2, LIMIT_S + 2)) == 2


def test_the_reason_names_numbers_and_witnesses() -> None:
    found = find_culprit([waits(0, 9.0), works(1, 9.5), waits(2, 9.0)], STEP_S, POLICY)
    assert found is not None
    assert found.reason == (
        "rank 1 has shown no progress for 9.5 s (a step takes 1.00 s, the limit is 8.0 s) while ranks 0, 2 wait"
    )
    assert "rank 2: boundary 5, body, waiting, state S, silent for 9.0 s" in found.evidence
