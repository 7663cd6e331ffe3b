from __future__ import annotations

import pytest

from torchrelay.controller.decide.roll_back import Step, choose_step
from torchrelay.controller.decide.stand import Cannot
from torchrelay.protocol.messages import Standing

HERE = {0: "n0", 1: "n0"}


def standing(gates: int, position: str = "body") -> dict[int, Standing]:
    return {0: Standing(1, gates, gates, position, "", "h", 1)}


def test_the_newest_step_of_which_all_ranks_have_whole_copies_is_taken() -> None:
    held = {0: {6: ["n0"], 9: ["n0"]}, 1: {3: ["n0"], 6: ["n0"]}}
    step = choose_step(held, HERE, standing(9))
    assert isinstance(step, Step)
    assert (step.boundary, step.redone) == (6, 4)
    assert step.reason == "all ranks go back to their copies of boundary 6; 4 steps are done again"


@pytest.mark.parametrize(("position", "redone"), [("body", 3), ("gate", 3), ("head", 2), ("after", 2)])
def test_a_step_under_way_counts_as_done_again(position: str, redone: int) -> None:
    held = {0: {6: ["n0"]}, 1: {6: ["n0"]}}
    step = choose_step(held, HERE, standing(8, position))
    assert isinstance(step, Step)
    assert step.redone == redone


def test_a_copy_must_lie_where_its_rank_goes_on() -> None:
    held = {0: {3: ["n0"], 6: ["n0"]}, 1: {3: ["n0", "n1"], 6: ["n1"]}}
    step = choose_step(held, HERE, standing(8))
    assert isinstance(step, Step)
    assert step.boundary == 3
    nowhere = choose_step({0: {6: ["n0"]}, 1: {6: ["n1"]}}, HERE, standing(8))
    assert nowhere == Cannot("the copy of rank 1 lies on n1, and n0, where it would go on, has none")


def test_what_cannot_be_gone_back_to_is_said() -> None:
    assert choose_step({0: {6: ["n0"]}}, HERE, standing(8)) == Cannot(
        "there is no whole copy of the state of rank 1 yet"
    )
    assert choose_step({0: {6: ["n0"]}, 1: {3: ["n0"]}}, HERE, standing(8)) == Cannot(
        "the copies of the ranks are of no common boundary (rank 0: 6; rank 1: 3)"
    )
