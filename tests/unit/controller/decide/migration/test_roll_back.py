from __future__ import annotations

import pytest

from torchrelay.controller.decide.migration.roll_back import RollBackStep, choose_givers, choose_step
from torchrelay.controller.decide.migration.stand import Cannot
from torchrelay.protocol.messages import Standing

HERE = {0: "n0", 1: "n0"}


def standing(gates: int, position: str = "body") -> dict[int, Standing]:
    return {0: Standing(1, gates, gates, position, "", "h", 1)}


def test_the_newest_step_of_which_all_ranks_have_whole_copies_is_taken() -> None:
    held = {0: {6: ["n0"], 9: ["n0"]}, 1: {3: ["n0"], 6: ["n0"]}}
    step = choose_step(held, HERE, standing(9))
    assert isinstance(step, RollBackStep)
    assert (step.boundary, step.redone) == (6, 4)
    assert step.reason == "all ranks go back to their copies of step 6; 4 steps are done again"


@pytest.mark.parametrize(("position", "redone"), [("body", 3), ("gate", 3), ("head", 2), ("after", 2), ("torn", 2)])
def test_a_step_under_way_counts_as_done_again(position: str, redone: int) -> None:
    held = {0: {6: ["n0"]}, 1: {6: ["n0"]}}
    step = choose_step(held, HERE, standing(8, position))
    assert isinstance(step, RollBackStep)
    assert step.redone == redone


def test_where_all_ranks_are_lost_what_was_seen_of_them_tells_what_is_done_again() -> None:
    held = {0: {6: ["n0"]}, 1: {6: ["n0"]}}
    step = choose_step(held, HERE, {}, seen_boundary=8)
    assert isinstance(step, RollBackStep)
    assert (step.boundary, step.redone) == (6, 3)


def test_a_copy_must_lie_where_some_rank_goes_on() -> None:
    held = {0: {3: ["n0"], 6: ["n0"]}, 1: {3: ["n0", "n1"], 6: ["n1"]}}
    step = choose_step(held, HERE, standing(8))
    assert isinstance(step, RollBackStep)
    assert step.boundary == 3
    nowhere = choose_step({0: {6: ["n0"]}, 1: {6: ["n1"]}}, HERE, standing(8))
    assert nowhere == Cannot(
        "the copy of rank 1 lies on n1, where no rank goes on, and n0, where rank 1 would go on, has none"
    )


def test_a_copy_on_another_node_is_given_by_the_rank_that_goes_on_there() -> None:
    places, held = {0: "n0", 1: "n2", 2: "n2"}, {0: ["n0"], 1: ["n0"], 2: ["n2"]}
    assert choose_givers(held, places) == {1: 0}
    step = choose_step({rank: {6: nodes} for rank, nodes in held.items()}, places, standing(8))
    assert isinstance(step, RollBackStep)
    assert step.boundary == 6


def test_of_several_who_have_a_copy_nobody_gives_two_before_all_give_one() -> None:
    places = {0: "n0", 1: "n1", 2: "n2", 3: "n2"}
    both = ["n0", "n1"]
    assert choose_givers({0: ["n0"], 1: ["n1"], 2: both, 3: both}, places) == {2: 0, 3: 1}


def test_a_copy_that_is_nowhere_any_more_is_said() -> None:
    assert choose_givers({0: ["n0"], 1: []}, HERE) == Cannot(
        "the copy of rank 1 is on no node any more, and n0, where rank 1 would go on, has none"
    )


def test_what_cannot_be_gone_back_to_is_said() -> None:
    assert choose_step({0: {6: ["n0"]}}, HERE, standing(8)) == Cannot(
        "there is no whole copy of the state of rank 1 yet"
    )
    assert choose_step({0: {6: ["n0"]}, 1: {3: ["n0"]}}, HERE, standing(8)) == Cannot(
        "the copies of the ranks are of no common step (rank 0: 6; rank 1: 3)"
    )
