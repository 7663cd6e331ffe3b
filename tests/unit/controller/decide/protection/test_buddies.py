from __future__ import annotations

import pytest

from torchrelay.controller.decide.protection.buddies import (
    MOST_OFTEN,
    MOST_OFTEN_BETWEEN_NODES,
    MOST_SELDOM,
    choose_buddy,
    choose_every,
    decide_keeping,
)

TWO = {0: "n0", 1: "n0", 2: "n1", 3: "n1"}


@pytest.mark.parametrize(("rank", "buddy"), [(0, 2), (1, 3), (2, 0), (3, 1)])
def test_the_buddy_is_in_the_same_place_on_the_next_node(rank: int, buddy: int) -> None:
    assert choose_buddy(rank, TWO) == buddy


def test_a_buddy_is_never_on_the_rank_s_own_node() -> None:
    uneven = {0: "n0", 1: "n0", 2: "n0", 3: "n1"}
    assert [choose_buddy(rank, uneven) for rank in uneven] == [3, 3, 3, 0]
    assert choose_buddy(0, {0: "n0", 1: "n0"}) == -1


def test_copies_are_kept_until_every_rank_is_known_to_have_a_replica() -> None:
    assert decide_keeping(0, {}, False, TWO).on
    assert not decide_keeping(0, {}, True, TWO).on
    keeping = decide_keeping(0, {1: "nobody holds w"}, True, TWO)
    assert (keeping.on, keeping.reason, keeping.buddy) == (True, "rank 1: nobody holds w", 2)


def test_large_states_and_short_steps_are_copied_less_often() -> None:
    gib = 1 << 30
    assert choose_every(1000, 1.0) == MOST_OFTEN == 1
    assert choose_every(4 * gib, 1.0) == 201
    assert choose_every(4 * gib, 2.0) == 101
    assert choose_every(400 * gib, 0.1) == MOST_SELDOM
    assert MOST_OFTEN <= choose_every(gib, 0.0) <= MOST_SELDOM


def test_copies_that_go_to_another_node_are_made_less_often() -> None:
    assert choose_every(1000, 1.0, nodes=2) == MOST_OFTEN_BETWEEN_NODES
    assert choose_every(4 << 30, 1.0, nodes=2) == choose_every(4 << 30, 1.0)
