"""When, where and how often spares are made, and which ones are given up."""

from __future__ import annotations

import dataclasses

import pytest

from torchrelay.controller.decide.replacement.refill import (
    IDLE_S,
    MOST_UNUSED,
    SILENT_FOR_GOOD_S,
    SILENT_S,
    STOPPED_S,
    WARM_S,
    Make,
    MakeNone,
    Pool,
    SeenSpare,
    VacatedPlace,
    look_after,
    refill,
)
from torchrelay.controller.decide.replacement.respawn import HOUR_S

FREE = VacatedPlace("n0.w1", "n0", spares=0, at_start=1)
SHORT = Pool(wanted=1, there=0, places=(FREE,))
PARKED = SeenSpare("n0.s0", warm=True, since_s=900.0, raised_s=900.0)


def test_one_is_made_in_the_place_of_the_leaver() -> None:
    assert refill(SHORT, 100.0) == Make("n0", "n0.w1")


def test_none_is_made_where_there_are_enough() -> None:
    assert refill(dataclasses.replace(SHORT, there=1), 100.0) == MakeNone("")


def test_the_machine_that_lacks_most_gets_it() -> None:
    places = (VacatedPlace("n0.w1", "n0", spares=1, at_start=1), VacatedPlace("n1.w0", "n1", spares=0, at_start=1))
    assert refill(Pool(2, 1, places), 100.0) == Make("n1", "n1.w0")


def test_none_is_made_where_nothing_must_run() -> None:
    barred = dataclasses.replace(FREE, unusable="GPU-1 has uncorrectable errors")
    assert refill(dataclasses.replace(SHORT, places=(barred,)), 100.0) == MakeNone(
        "no place is free for one: n0: GPU-1 has uncorrectable errors"
    )
    other = VacatedPlace("n1.w0", "n1", spares=1)
    assert refill(dataclasses.replace(SHORT, places=(barred, other)), 100.0) == Make("n1", "n1.w0")


def test_never_while_something_must_not_be_disturbed() -> None:
    assert refill(dataclasses.replace(SHORT, busy="a migration is under way"), 100.0) == MakeNone(
        "a migration is under way"
    )


def test_pauses_grow_with_each_spare_that_came_to_nothing() -> None:
    def at(now_s: float, *unused_s: float) -> Make | MakeNone:
        return refill(dataclasses.replace(SHORT, unused_s=unused_s, unused="n0.s1: it has ended"), now_s)

    assert isinstance(at(101.9, 100.0), MakeNone)
    assert isinstance(at(102.0, 100.0), Make)
    assert isinstance(at(103.9, 90.0, 100.0), MakeNone)
    assert isinstance(at(104.0, 90.0, 100.0), Make)


def test_there_is_an_end_of_it_until_the_hour_is_over() -> None:
    short = dataclasses.replace(SHORT, unused_s=tuple(range(MOST_UNUSED)), unused="n0.s6: it could not be started")
    verdict = refill(short, 1000.0)
    expected = "6 spares came to nothing within the hour, the latest one: n0.s6: it could not be started"
    assert verdict == MakeNone(expected)
    assert isinstance(refill(short, HOUR_S + 1000.0), Make)


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"stopped_s": STOPPED_S}, "it has been stopped for 10 s"),
        ({"silent_s": SILENT_FOR_GOOD_S}, "it has not answered for 45 s"),
        ({"warm": False, "raised_s": WARM_S}, "it was not ready after 900 s"),
        ({"disabled": "torch 1.0"}, "it cannot be used: torch 1.0"),
    ],
)
def test_a_spare_of_no_use_is_ended(change: dict[str, object], why: str) -> None:
    assert look_after(PARKED).end == ""
    assert look_after(dataclasses.replace(PARKED, **change)).end == why  # type: ignore[arg-type]  # of any of its fields


@pytest.mark.parametrize(
    "idle",
    [
        SeenSpare("n0.s1", warm=False, since_s=IDLE_S, raised_s=None),
        SeenSpare("n0.s1", warm=True, since_s=900.0, raised_s=None, silent_s=SILENT_S),
        SeenSpare("n0.s1", warm=True, since_s=900.0, raised_s=None, silent_s=900.0),
    ],
)
def test_one_that_gives_way_to_training_is_let_run_before_it_is_judged(idle: SeenSpare) -> None:
    care = look_after(idle)
    assert (care.end, care.hurry) == ("", True)


def test_one_that_gives_way_has_its_time() -> None:
    assert not look_after(SeenSpare("n0.s1", warm=False, since_s=IDLE_S - 1, raised_s=None)).hurry
