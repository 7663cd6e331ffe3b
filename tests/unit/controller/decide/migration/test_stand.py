from __future__ import annotations

import re
from dataclasses import replace

import pytest

from torchrelay.controller.decide.migration.stand import (
    Cannot,
    JoinEntry,
    Target,
    decide_entry,
    decide_target,
    still_at_gate,
)
from torchrelay.protocol.messages import Standing


def at(boundary: int, gates: int, position: str) -> Standing:
    return Standing(1, boundary, gates, position, "detail", "h", 1)


@pytest.mark.parametrize(
    ("standings", "boundary", "actions", "offline"),
    [
        # Nobody passed gate 5: all redo.
        ([at(5, 5, "body"), at(5, 5, "gate"), at(5, 5, "head")], 5, ["rewind", "rewind", "stay"], False),
        # One passed it: all have their gradients.
        ([at(5, 6, "after"), at(5, 5, "gate"), at(5, 6, "gate")], 6, ["forward", "forward", "forward"], False),
        # At a gate behind the loop of its boundary: the same.
        ([at(5, 6, "after"), at(5, 5, "behind")], 6, ["forward", "forward"], False),
        # One is a step ahead already and has begun the next.
        ([at(6, 6, "body"), at(5, 6, "after"), at(6, 6, "head")], 6, ["rewind", "forward", "stay"], False),
        # The first step.
        ([at(0, 0, "body"), at(0, 0, "head")], 0, ["rewind", "stay"], False),
        # Somebody has finished, somebody still logs.
        ([at(6, 6, "finished"), at(5, 6, "after")], 6, ["stay", "forward"], True),
        ([at(6, 6, "finished"), at(6, 6, "body")], 6, ["stay", "rewind"], True),
    ],
)
def test_the_target_follows_from_the_gates(
    standings: list[Standing], boundary: int, actions: list[str], offline: bool
) -> None:
    target = decide_target(dict(enumerate(standings)))
    assert isinstance(target, Target)
    assert (target.boundary, list(target.actions.values()), target.offline) == (boundary, actions, offline)
    assert f"after step {boundary}" in target.reason


def test_one_rank_and_several_are_told_apart_in_words() -> None:
    target = decide_target(dict(enumerate([at(6, 6, "body"), at(5, 6, "after"), at(6, 6, "body"), at(6, 6, "head")])))
    assert isinstance(target, Target)
    assert target.reason == (
        "all meet after step 6: rank 1 finishes step 6; ranks 0, 2 go back and do step 7 again; rank 3 is there"
    )


def test_who_has_its_gradients_and_not_its_update_is_not_there_yet() -> None:
    standings = dict(enumerate([at(5, 6, "after"), at(5, 5, "gate"), at(5, 6, "gate"), at(5, 5, "behind")]))
    assert still_at_gate(standings, 6) == [1, 3]
    assert still_at_gate(standings, 5) == []


@pytest.mark.parametrize(
    ("standings", "why"),
    [
        ([], "no rank is left"),
        ([at(6, 6, "head"), at(5, 5, "body")], "rank 1 has done 5 steps .* cannot get to the end of step 6"),
        ([at(7, 7, "head"), at(5, 6, "after")], "rank 1"),
        ([at(-1, 0, "body")], "rank 0"),
        ([at(6, 7, "after"), at(6, 6, "finished")], "rank 1"),
        ([at(5, 5, "body"), at(5, 5, "behind")], r"rank 1 has done 5 steps and stands in the next one \(behind"),
    ],
)
def test_ranks_that_cannot_meet_are_named(standings: list[Standing], why: str) -> None:
    target = decide_target(dict(enumerate(standings)))
    assert isinstance(target, Cannot)
    assert re.search(why, target.reason)


@pytest.mark.parametrize(
    ("boundaries", "gates", "action"),
    [({4, 5, 6}, {5}, "enter"), ({5, 6}, set(), "enter"), ({4, 5}, {5}, "shadow"), ({5}, {5, 4}, "shadow")],
)
def test_a_joiner_enters_where_the_journal_ends_or_walks_the_last_step(
    boundaries: set[int], gates: set[int], action: str
) -> None:
    entry = decide_entry(1, 6, boundaries, gates)
    assert isinstance(entry, JoinEntry)
    assert entry.action == action


@pytest.mark.parametrize(("boundaries", "gates"), [(set(), set()), ({5}, set()), ({4}, {4}), ({7}, {5})])
def test_a_journal_that_does_not_reach_the_target_is_no_way_in(boundaries: set[int], gates: set[int]) -> None:
    entry = decide_entry(1, 6, boundaries, gates)
    assert isinstance(entry, Cannot)
    assert "step 6" in entry.reason


@pytest.mark.parametrize(
    ("donor", "gates", "expected"),
    [
        pytest.param(replace(at(6, 6, "body"), late={"a": 1}), {5}, "enter", id="donor is there"),
        pytest.param(at(5, 6, "after"), {5}, "shadow", id="what is written there is not known"),
        pytest.param(replace(at(5, 6, "after"), late={"a": 1}), {5}, "shadow", id="the donor is in the middle"),
        pytest.param(at(5, 6, "after"), set(), "would be missing", id="no other way in"),
    ],
)
def test_a_rank_that_was_ahead_goes_where_its_donors_tensors_are_right(
    donor: Standing, gates: set[int], expected: str
) -> None:
    entry = decide_entry(1, 6, {5, 6}, gates, donor)
    assert expected in (entry.reason if isinstance(entry, Cannot) else entry.action)


def test_nobody_takes_over_while_a_sharded_model_is_used_after_the_update() -> None:
    found = decide_target({0: at(5, 6, "sharded"), 1: at(6, 6, "body")})
    assert isinstance(found, Cannot)
    assert "rank 0 has used its sharded model for another forward pass" in found.reason


@pytest.mark.parametrize(
    ("position", "why"),
    [
        ("astray", "where it cannot go back to the beginning of its step"),
        ("once", "interrupted after optimizer step 6, in a forward"),
    ],
)
def test_nobody_goes_on_where_one_rank_cannot(position: str, why: str) -> None:
    target = decide_target({0: at(6, 6, "head"), 1: at(5, 6, position)})
    assert isinstance(target, Cannot)
    assert f"rank 1 {'stands' if position == 'astray' else 'was'}" in target.reason
    assert why in target.reason


LEFT = replace(at(5, 6, "left"), left="a.py:3#1")


def test_who_has_left_the_loop_at_its_head_goes_on_behind_it() -> None:
    target = decide_target({0: LEFT, 1: LEFT})
    assert isinstance(target, Target)
    assert (target.boundary, target.left) == (6, "a.py:3#1")
    assert target.actions == {0: "forward", 1: "forward"}


def test_who_has_left_the_loop_goes_on_beside_one_that_is_at_the_script_s_end() -> None:
    target = decide_target({0: LEFT, 1: at(5, 6, "finished")})
    assert isinstance(target, Target)
    assert target.actions == {0: "forward", 1: "stay"}
    assert target.offline


def test_who_is_in_a_further_loop_already_meets_there_with_who_is_behind_the_one_before() -> None:
    target = decide_target({0: LEFT, 1: replace(at(6, 6, "body"), place="a.py:3#2")})
    assert isinstance(target, Target)
    assert target.actions == {0: "forward", 1: "rewind"}


@pytest.mark.parametrize(
    "other",
    [
        pytest.param(replace(at(6, 6, "body"), place="a.py:3#1"), id="at the head where others have left it"),
        pytest.param(at(5, 6, "after"), id="in the step before"),
        pytest.param(replace(LEFT, left="a.py:9#1"), id="behind another one"),
    ],
)
def test_while_one_rank_may_be_in_the_loop_that_another_one_has_left_nobody_goes_on(other: Standing) -> None:
    target = decide_target({0: LEFT, 1: other})
    assert isinstance(target, Cannot)
    assert target.reason.startswith("rank 0 has left the loop that rank 1 may be in")


def test_one_number_in_two_loops_is_no_meeting_place() -> None:
    here, there = replace(at(6, 6, "body"), place="a.py:3#1"), replace(at(6, 6, "body"), place="a.py:9#1")
    assert isinstance(decide_target({0: here, 1: here, 2: at(5, 6, "after")}), Target)
    target = decide_target({0: here, 1: there})
    assert isinstance(target, Cannot)
    assert "ranks 0, 1 are after step 6 in different loops" in target.reason
