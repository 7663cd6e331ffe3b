"""Without a controller a node ends as torchrun would."""

from __future__ import annotations

from torchrelay.agent.connections.orphaned import Holder, judge
from torchrelay.protocol.names import WorkerId


def holder(rank: int, exit_code: int | None = None) -> Holder:
    return Holder(WorkerId(f"n0.w{rank}"), rank, exit_code)


def test_ranks_that_train_are_left_alone() -> None:
    verdict = judge([holder(0), holder(1)], {WorkerId("n0.w1")})
    assert verdict.may_finish == ("n0.w1",)
    assert verdict.stop is None


def test_a_failed_rank_ends_the_node_with_its_exit_code() -> None:
    verdict = judge([holder(0), holder(1, 3)], set())
    assert verdict.stop is not None
    assert verdict.stop.exit_code == 3


def test_the_last_rank_that_is_done_ends_the_node() -> None:
    assert judge([holder(0, 0), holder(1)], set()).stop is None
    verdict = judge([holder(0, 0), holder(1, 0)], set())
    assert verdict.stop is not None
    assert verdict.stop.exit_code == 0


def test_a_node_of_spares_waits() -> None:
    assert judge([], set()).stop is None
