from __future__ import annotations

from dataclasses import replace

from torchrelay.controller.health.corruption import odd_one_out
from torchrelay.protocol.messages import ReplicaCheck


def checks(*ranks: tuple[str, str]) -> dict[int, list[ReplicaCheck]]:
    """The digest of one tensor at boundaries 10 and 20, rank by rank."""
    return {r: [ReplicaCheck(10, {"w": a}), ReplicaCheck(20, {"w": b})] for r, (a, b) in enumerate(ranks)}


def test_a_rank_that_left_its_replicas_is_suspected() -> None:
    found = odd_one_out(checks(("a", "b"), ("a", "X"), ("a", "b")), 3)
    assert found is not None
    assert found[0] == 1
    assert "differ after step 20" in found[1]
    assert "after step 10 all were equal" in found[1]


def test_equal_ranks_and_ranks_that_never_were_equal_are_not() -> None:
    assert odd_one_out(checks(("a", "b"), ("a", "b"), ("a", "b")), 3) is None
    assert odd_one_out(checks(("a", "b"), ("y", "X"), ("a", "b")), 3) is None
    assert odd_one_out(checks(("a", "b"), ("a", "c"), ("a", "d")), 3) is None


def test_of_two_nobody_can_say_who_is_wrong() -> None:
    assert odd_one_out(checks(("a", "b"), ("a", "X")), 2) is None
    assert odd_one_out(checks(("a", "b"), ("a", "b"), ("a", "X"), ("a", "X")), 4) is None


def test_only_boundaries_that_all_have_checked_count() -> None:
    late = checks(("a", "b"), ("a", "X"), ("a", "b"))
    late[2].pop()
    assert odd_one_out(late, 3) is None
    del late[2]
    assert odd_one_out(late, 3) is None


def test_a_tensor_that_was_not_there_before_is_no_replica() -> None:
    new = checks(("a", "b"), ("a", "b"), ("a", "b"))
    for rank, digest in ((0, "n"), (1, "X"), (2, "n")):
        new[rank][1].digests["new"] = digest
    assert odd_one_out(new, 3) is None


def test_a_rank_that_is_in_another_loop_is_not() -> None:
    """Such as the first rank alone, which evaluates with other weights for a while."""
    there = checks(("a", "b"), ("a", "X"), ("a", "b"))
    there[1][1] = replace(there[1][1], since=20)
    assert odd_one_out(there, 3) is None
    there[1][1] = replace(there[1][1], since=10)
    assert odd_one_out(there, 3) is not None


def test_a_rank_that_has_told_of_an_earlier_head_is_not() -> None:
    """Heads of iterations without an update have the same number, and what the script does between them may change tensors."""
    told = checks(("a", "b"), ("a", "X"), ("a", "b"))
    told[1][1] = replace(told[1][1], place="before")
    assert odd_one_out(told, 3) is None
