"""A rank is moved to another machine where that, and nothing less, makes the job outlive the loss of one."""

from __future__ import annotations

import dataclasses

import pytest

from torchrelay.controller.decide.protection.known import Known, machine_uncovered
from torchrelay.controller.decide.replacement.spread import (
    MOST_IN_VAIN,
    MOST_SHARE,
    MoveAway,
    ReadySpares,
    StayThere,
    depends_on,
    pause_s,
    spent,
    spread,
)
from torchrelay.protocol.messages import ReplicaCheck, Report

Checks = dict[int, tuple[ReplicaCheck, ...]]


def checks(*held: str) -> Checks:
    """`held`: what each rank holds."""
    return {rank: (ReplicaCheck(4, {"w": what}, ("w",) * (held.count(what) > 1)),) for rank, what in enumerate(held)}


def known(held: str, places: str, copy_bytes: int = 0) -> Known:
    """`held` and `places`: one letter of each rank: what it holds, and the machine that it is on."""
    report = Report("train.py", 30, 400, 900, 4, (), (), (), 5, True, copy_every=5, copy_bytes=copy_bytes)
    reports, count = dict.fromkeys(range(len(held)), report), len(held)
    machine_of = dict(enumerate(places))
    copied = frozenset(range(count))
    return Known(count, "on", "", reports, checks(*held), 0.5, 6.5, nodes=3, machine_of=machine_of, copied=copied)


def ready(refilled: bool = True, homes: dict[int, str] | None = None, **by_machine: int) -> ReadySpares:
    return ReadySpares(by_machine, refilled, homes or {})


def test_one_rank_moves_from_where_all_are_and_no_other_one_after_it() -> None:
    found = spread(known("xxx", "AAA"), ready(A=1, B=3))
    assert found == MoveAway(0, "the loss of A would end the job: all ranks are there")
    assert found.reason == "to another machine, since the loss of A would end the job: all ranks are there"
    assert spread(known("xxx", "BAA"), ready(A=2, B=2)) == StayThere()


def test_the_rank_that_moves_belongs_to_the_machine_that_is_back() -> None:
    found = spread(known("xxxx", "AAAA"), ready(B=4, homes={0: "A", 1: "A", 2: "B", 3: "B"}))
    assert isinstance(found, MoveAway)
    assert found.rank == 2


def test_of_each_group_that_holds_the_same_one_moves_and_then_no_more() -> None:
    """Ranks 0 and 2 hold one part of a model, 1 and 3 the other one."""
    k, moved = known("xyxy", "AAAA"), []
    while isinstance(found := spread(k, ready(A=1, B=4, homes={2: "B", 3: "B"})), MoveAway):
        moved.append(found.rank)
        k = dataclasses.replace(k, machine_of={**k.machine_of, found.rank: "B"})
    assert moved == [2, 3]
    assert machine_uncovered(k) == ""


def test_what_only_one_machine_holds_is_named() -> None:
    found = spread(known("xyxy", "AABA"), ready(B=1))
    assert found == MoveAway(1, "the loss of A would end the job: only there is what rank 1 holds")


def test_no_rank_moves_where_spares_elsewhere_do_not_do_for_all_that_have_to() -> None:
    found = spread(known("xyxy", "AAAA"), ready(A=3, B=1))
    assert found == StayThere(
        "the loss of A would end the job: all ranks are there; spares needed on other machines: 2, ready there: 1"
    )
    assert isinstance(spread(known("xyxy", "AAAA"), ready(A=1, B=1, C=1)), MoveAway)


def test_spares_on_the_same_machine_are_of_no_use() -> None:
    found = spread(known("xx", "AA"), ready(A=5))
    assert isinstance(found, StayThere)
    assert "ready there: 0" in found.reason


def test_the_last_spare_is_kept_where_no_new_one_is_made() -> None:
    found = spread(known("xx", "AA"), ready(refilled=False, B=1))
    assert isinstance(found, StayThere)
    assert "the only spare is kept" in found.reason
    assert isinstance(spread(known("xx", "AA"), ready(refilled=False, A=1, B=1)), MoveAway)
    assert isinstance(spread(known("xx", "AA"), ready(refilled=True, B=1)), MoveAway)


@pytest.mark.parametrize(
    "k",
    [
        known("xx", "AB"),
        known("xy", "AA"),  # nobody else holds what each holds: lost with its machine wherever that is
        known("xxy", "AAA"),
        dataclasses.replace(known("xx", "AA"), checks={0: (), 1: ()}),
        dataclasses.replace(known("xx", "AA"), machine_of={}),
        dataclasses.replace(known("xx", "AA"), losses_barred="planned-only"),
        dataclasses.replace(known("xyxy", "AABA"), kept_elsewhere=frozenset({1, 3})),
    ],
)
def test_no_rank_moves_where_that_makes_nothing_better(k: Known) -> None:
    assert spread(k, ready(A=4, B=4, C=4)) == StayThere()


def test_ranks_that_nobody_stands_in_for_move_where_copies_of_them_come_to_another_machine() -> None:
    assert isinstance(spread(known("xyz", "AAA", copy_bytes=4096), ready(B=1)), MoveAway)
    assert spread(known("xyz", "AAB", copy_bytes=4096), ready(B=1)) == StayThere()


@pytest.mark.parametrize(
    ("held", "places", "found"),
    [("xxx", "AAA", "A"), ("xxx", "ABA", ""), ("xyxy", "ABAB", "A"), ("xyxy", "ABBA", "B"), ("xyz", "CBB", "B")],
)
def test_a_rank_depends_on_the_machine_where_all_others_are_that_hold_the_same(
    held: str, places: str, found: str
) -> None:
    assert depends_on(0, checks(*held), dict(enumerate(places))) == found


def test_pauses_grow_with_what_a_move_costs_and_with_those_that_brought_nothing() -> None:
    assert pause_s(30.0, 0.0, [], 5000.0) == 30.0
    assert pause_s(30.0, 2.0, [], 5000.0) == 2.0 / MOST_SHARE
    assert pause_s(30.0, 0.0, [4000.0, 4500.0], 5000.0) == 120.0
    assert spent([4000.0] * (MOST_IN_VAIN - 1), 5000.0) == ""
    assert spent([4000.0] * MOST_IN_VAIN, 5000.0).startswith("3 moves")
    assert spent([1000.0] * MOST_IN_VAIN, 5000.0) == ""
