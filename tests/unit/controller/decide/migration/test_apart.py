"""Whether ranks still hold the same after a migration, told from digests."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

from torchrelay.controller.decide.migration import apart as decide
from torchrelay.controller.decide.migration.apart import Alike, apart
from torchrelay.protocol.messages import ReplicaCheck


def check(boundary: int, kept: tuple[str, ...] = (), since: int = 0, **digests: str) -> ReplicaCheck:
    small = {name: digests.pop(name) for name in list(digests) if name.startswith("small")}
    return ReplicaCheck(boundary, digests, kept, since, small)


def alike(checks: Mapping[int, Iterable[ReplicaCheck]], before: int, *, unwritten: bool = False) -> Alike:
    return decide.alike(checks, before, unwritten=unwritten)


def test_what_was_equal_at_all_boundaries_and_is_not_any_more_is_named_with_its_ranks() -> None:
    before = {rank: [check(1, w="a", b="p"), check(2, w="c", b="p")] for rank in range(3)}
    known = alike(before, 5)
    assert apart(known, {rank: check(6, w="x", b="p") for rank in range(3)}) is None
    found = apart(known, {0: check(6, w="x", b="p"), 1: check(6, w="x", b="p"), 2: check(6, w="y", b="p")})
    assert found is not None
    assert (found.ranks, found.path, found.count, found.boundary) == ((0, 1, 2), "w", 1, 6)
    assert "ranks 0, 1, 2 differ in w after step 6" in found.reason()


def test_what_a_forward_has_made_is_left_alone() -> None:
    """Rank 0 evaluates alone, and leaves another normalized weight behind; there it has no graph."""
    before = {rank: [check(1, v="a", w="b"), check(2, v="c", w="d")] for rank in range(2)}
    now = {0: check(6, v="x", w="e"), 1: check(6, v="y", w="e")}
    assert apart(alike(before, 5), now) is not None
    assert apart(alike(before, 5), now | {1: replace(now[1], derived=("v",))}) is None
    before[1] = [replace(c, derived=("v",)) for c in before[1]]
    before[0][0] = check(1, v="q", w="b")
    assert apart(alike(before, 5), now) is None
    assert apart(alike(before, 5), now | {1: check(6, v="y", w="f")}) is not None


def test_two_ranks_that_have_told_are_enough() -> None:
    known = alike({rank: [check(1, w="a"), check(2, w="c")] for rank in range(3)}, 5)
    assert apart(known, {0: check(6, w="x")}) is None
    assert apart(known, {0: check(6, w="x"), 2: check(6, w="y")}) is not None


def test_small_buffers_count_too() -> None:
    known = alike({rank: [check(1, small0="a"), check(2, small0="c")] for rank in range(2)}, 5)
    found = apart(known, {0: check(6, small0="x"), 1: check(6, small0="y")})
    assert found is not None
    assert found.path == "small0"


def test_ranks_that_average_now_and_then_are_left_alone() -> None:
    """Equal at 8 and apart at 9: as at any boundary that is no multiple."""
    apart_at_9 = {rank: [check(8, w="a"), check(9, w=str(rank)), check(16, w="b")] for rank in range(2)}
    assert alike(apart_at_9, 20) == {}


def test_ranks_that_were_apart_where_they_have_gone_back_from_are_left_alone() -> None:
    """A wrapper holds the model, but its gradients are not averaged in each step."""
    before = {
        rank: [check(1, ("w", "b"), w="a", b="p"), check(2, ("w", "b"), w=f"of {rank}", b="q")] for rank in range(2)
    }
    assert alike(before, 2) == {}


def test_what_ranks_hold_alike_by_chance_that_train_apart_says_nothing() -> None:
    """A wrapper is to keep both equal. It does not keep one of them, and the difference comes to the other one later."""
    kept = ("w", "b")
    before = {r: [check(b, kept, w=f"of {r % 2} at {b}", b=f"at {b}") for b in (1, 2)] for r in range(3)}
    known = alike(before, 5)
    assert known == {"w": [frozenset({0, 2})], "b": [frozenset({0, 2})]}
    assert apart(known, {0: check(6, b="x"), 1: check(6, b="y"), 2: check(6, b="x")}) is None
    assert apart(known, {0: check(6, b="x"), 1: check(6, b="x"), 2: check(6, b="y")}) is not None


def test_what_ranks_without_a_wrapper_hold_alike_while_they_differ_elsewhere_says_nothing() -> None:
    """Weights that each rank adds something of its own to and takes away again: a momentum rounds to the same at first."""
    before = {rank: [check(1, w="a", m="p"), check(2, w=f"of {rank}", m="q")] for rank in range(2)}
    assert alike(before, 5) == {}
    statistics = {
        rank: [check(n, **{"conv.w": f"after {n}", "small.mean": f"of {rank}"}) for n in (1, 2)] for rank in range(2)
    }
    assert alike(statistics, 5) == {"conv.w": [frozenset({0, 1})]}


def test_what_no_wrapper_keeps_equal_may_differ_beside_what_one_does() -> None:
    before = {r: [check(b, ("w",), w=f"at {b}", small_mean=f"of {r}") for b in (1, 2)] for r in range(2)}
    assert alike(before, 5) == {"w": [frozenset({0, 1})]}


def test_a_buffer_beside_one_that_each_rank_keeps_for_itself_may_differ() -> None:
    """A grid of densities that each rank samples, and the mask of those above a threshold."""

    def grid(rank: int, boundary: int, mask: str) -> ReplicaCheck:
        of_rank = {"buffer0.grid.density": f"of {rank} at {boundary}", "buffer0.grid.mask": mask}
        return ReplicaCheck(boundary, {}, (), 0, {**of_rank, "buffer0.norm.mean": f"at {boundary}"})

    known = alike({r: [grid(r, b, f"at {b}") for b in (1, 2)] for r in range(2)}, 5)
    assert known == {"buffer0.norm.mean": [frozenset({0, 1})]}
    assert apart(known, {r: grid(r, 6, f"of {r}") for r in range(2)}) is None


def test_equality_by_initialisation_and_what_was_seen_once_only_say_nothing() -> None:
    assert alike({rank: [check(0, w="a")] for rank in range(2)}, 5) == {}
    assert alike({rank: [check(0, w="a"), check(1, w="b")] for rank in range(2)}, 5) == {}
    kept = {rank: [check(0, ("w",), w="a"), check(1, ("w",), w="b")] for rank in range(2)}
    assert alike(kept, 5) == {"w": [frozenset({0, 1})]}


def test_checks_of_another_loop_and_of_the_boundary_itself_do_not_count() -> None:
    earlier = [check(1, w="a"), check(2, w="b")]
    assert alike({0: [*earlier, check(10, since=10, w="c")], 1: [*earlier, check(10, since=10, w="c")]}, 12) == {}
    assert alike({rank: [check(1, w="a"), check(2, w="b")] for rank in range(2)}, 2) == {}


def test_groups_of_ranks_that_hold_shards_are_compared_among_themselves() -> None:
    before = {rank: [check(1, w="ab"[rank % 2]), check(2, w="cd"[rank % 2])] for rank in range(4)}
    known = alike(before, 5)
    assert set(known["w"]) == {frozenset({0, 2}), frozenset({1, 3})}
    assert apart(known, {rank: check(6, w="xy"[rank % 2]) for rank in range(4)}) is None
    found = apart(known, {rank: check(6, w="xyxz"[rank]) for rank in range(4)})
    assert found is not None
    assert found.ranks == (1, 3)


def test_what_nobody_had_written_to_counts_only_until_somebody_may() -> None:
    """Statistics of a batch norm that an average of the weights takes over at the end of an epoch, for the first time."""
    before = {rank: [check(1, small0="as initialised"), check(2, small0="as initialised")] for rank in range(2)}
    assert alike(before, 5) == {}
    found = apart(alike(before, 5, unwritten=True), {0: check(5, small0="as initialised"), 1: check(5, small0="other")})
    assert found is not None
    assert found.path == "small0"


def test_what_a_wrapper_keeps_equal_counts_without_a_write_too() -> None:
    frozen = {rank: [check(1, ("w",), w="a"), check(2, ("w",), w="a")] for rank in range(2)}
    assert alike(frozen, 5) == {"w": [frozenset({0, 1})]}


def test_two_heads_with_one_number_are_no_common_one() -> None:
    there = {0: [check(1, w="a"), check(2, w="b")], 1: [check(1, w="a"), replace(check(2, w="b"), place="another")]}
    assert alike(there, 5) == {}
