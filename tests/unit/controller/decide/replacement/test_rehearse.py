from __future__ import annotations

import dataclasses

import pytest

from torchrelay.controller.decide.replacement.rehearse import (
    BETWEEN_S,
    FIRST_AFTER_S,
    Due,
    NotDue,
    Past,
    RehearsalSituation,
    rehearse,
)

TRAINS = RehearsalSituation(world_size=4, every_s=1800.0, trains_since_s=100.0, shape=7, past={})


def test_rank_0_is_rehearsed_first_once_training_has_gone_on_for_a_while() -> None:
    assert rehearse(TRAINS, 100.0 + FIRST_AFTER_S - 0.1) == NotDue("rank 0 is next", 100.0 + FIRST_AFTER_S)
    assert rehearse(TRAINS, 100.0 + FIRST_AFTER_S) == Due(0, "all ranks train")


def test_a_rank_that_does_not_do_what_rank_0_does_follows_soon() -> None:
    after = dataclasses.replace(TRAINS, past={0: Past(120.0, True, 7)})
    assert isinstance(rehearse(after, 120.0 + BETWEEN_S - 1), NotDue)
    assert rehearse(after, 120.0 + BETWEEN_S) == Due(1, "it has not been rehearsed yet")


def test_the_others_take_turns() -> None:
    past = {0: Past(120.0, True, 7), 1: Past(140.0, True, 7)}
    both = dataclasses.replace(TRAINS, past=past)
    assert isinstance(rehearse(both, 140.0 + 1799), NotDue)
    assert rehearse(both, 140.0 + 1800) == Due(2, "the latest rehearsal is long ago")
    past |= {2: Past(2000.0, True, 7), 3: Past(4000.0, True, 7)}
    assert rehearse(dataclasses.replace(TRAINS, past=past), 6000.0) == Due(0, "the latest rehearsal is long ago")


def test_a_state_of_another_shape_is_rehearsed_before_its_time_but_not_at_once() -> None:
    past = {0: Past(120.0, True, 7), 1: Past(140.0, True, 7)}
    grown = dataclasses.replace(TRAINS, past=past, shape=8)
    assert isinstance(rehearse(grown, 200.0), NotDue)
    assert rehearse(grown, 260.0) == Due(0, "the state has things of a kind that it had not before")


def test_what_was_broken_off_is_tried_again() -> None:
    past = {0: Past(120.0, True, 7), 1: Past(140.0, False, 7)}
    assert rehearse(dataclasses.replace(TRAINS, past=past), 260.0) == Due(1, "its latest rehearsal was broken off")


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"every_s": 0.0}, "rehearsals are switched off"),
        ({"busy": "a migration is under way"}, "a migration is under way"),
        ({"barred": "no spare is warm"}, "no spare is warm"),
        ({"trains_since_s": None}, "not all ranks have come round their training loop and compared what they hold"),
    ],
)
def test_why_none_is_due(changes: dict[str, object], reason: str) -> None:
    assert rehearse(dataclasses.replace(TRAINS, **changes), 1e6) == NotDue(reason)  # type: ignore[arg-type]  # by name


def test_a_short_interval_shortens_all_waits() -> None:
    quick = dataclasses.replace(TRAINS, every_s=1.0)
    assert rehearse(quick, 101.0) == Due(0, "all ranks train")
    assert rehearse(dataclasses.replace(quick, past={0: Past(101.0, True, 7)}), 102.0).rank == 1  # type: ignore[union-attr]


def test_where_ranks_stand_still_the_first_ones_are_rehearsed_at_once_and_no_other() -> None:
    stands = dataclasses.replace(TRAINS, stands=True)
    assert rehearse(stands, 100.0) == Due(0, "all ranks train")
    assert rehearse(dataclasses.replace(stands, past={0: Past(103.0, False, 7)}), 103.0).rank == 1  # type: ignore[union-attr]
    both = dataclasses.replace(stands, past={0: Past(103.0, False, 7), 1: Past(105.0, True, 7)})
    assert isinstance(rehearse(both, 105.0), NotDue)
