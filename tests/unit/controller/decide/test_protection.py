from __future__ import annotations

from torchrelay.controller.decide.protection import sentence, without_replica
from torchrelay.protocol.messages import ReplicaCheck


def check(boundary: int, **digests: str) -> ReplicaCheck:
    return ReplicaCheck(boundary, digests)


def test_ranks_that_hold_their_tensors_alone_are_named() -> None:
    checks = {0: [check(1, a="1")], 1: [check(1, a="2")], 2: [check(1, a="1")], 3: [check(1, a="3")]}
    assert without_replica(4, checks) == [1, 3]
    assert "ranks 1, 3: each can be moved" in sentence([1, 3])
    assert "rank 1: it can be moved" in sentence([1])


def test_equality_before_the_first_step_says_nothing_yet() -> None:
    assert without_replica(2, {0: [check(0, a="1")], 1: [check(0, a="2")]}) == []
    assert without_replica(2, {0: [check(1, a="1")]}) == []


def test_who_holds_more_than_another_can_stand_in_for_it() -> None:
    assert without_replica(2, {0: [check(1, a="1")], 1: [check(1, a="1", b="2")]}) == [1]
