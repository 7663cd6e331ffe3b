"""A job never has two controllers that go on without each other's machines."""

from __future__ import annotations

import itertools

import pytest

from torchrelay.protocol.quorum import QuorumAnswer, may_go_on, next_epoch


@pytest.mark.parametrize(
    ("size", "there", "leads", "shared", "answer"),
    [
        (3, 2, False, False, QuorumAnswer.GO_ON),
        (3, 1, True, True, QuorumAnswer.WAIT),
        (2, 1, True, False, QuorumAnswer.GO_ON),
        (2, 1, False, False, QuorumAnswer.WAIT),
        (2, 1, True, True, QuorumAnswer.CLAIM),
        (2, 1, False, True, QuorumAnswer.CLAIM),
        (4, 2, False, False, QuorumAnswer.WAIT),
        (1, 1, True, False, QuorumAnswer.GO_ON),
    ],
)
def test_more_than_half_go_on_and_half_only_by_a_rule(
    size: int, there: int, leads: bool, shared: bool, answer: QuorumAnswer
) -> None:
    names = [f"n{number}" for number in range(size)]
    assert may_go_on(names, names[:there], leads, shared).answer is answer


@pytest.mark.parametrize(("size", "shared"), list(itertools.product(range(1, 7), [False, True])))
def test_of_two_parts_that_do_not_hear_each_other_one_goes_on_at_most(size: int, shared: bool) -> None:
    """Whoever claims first wins; the part that has led so far is one of them, or has no controller left."""
    names = {f"n{number}" for number in range(size)}
    for count in range(size + 1):
        for part in map(set, itertools.combinations(sorted(names), count)):
            for first_leads in (True, False):
                here, there = (
                    may_go_on(names, part, first_leads, shared),
                    may_go_on(names, names - part, not first_leads, shared),
                )
                on = sum(v.answer is QuorumAnswer.GO_ON for v in (here, there))
                claims = any(v.answer is QuorumAnswer.CLAIM for v in (here, there))
                assert on + claims <= 1, (names, part)


def test_machines_that_are_no_members_do_not_count() -> None:
    assert may_go_on(["n0", "n1", "n2"], ["n0", "n1-2", "n2-2"], True, False).answer is QuorumAnswer.WAIT


def test_no_two_machines_ever_lead_in_the_same_epoch() -> None:
    used = {next_epoch(after, rank, 3) for after in range(20) for rank in range(3)}
    assert all(next_epoch(after, rank, 3) > after for after in range(20) for rank in range(3))
    assert {epoch: epoch % 3 for epoch in used} == {
        next_epoch(after, rank, 3): rank for after in range(20) for rank in range(3)
    }
