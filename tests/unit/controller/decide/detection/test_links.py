from __future__ import annotations

from collections.abc import Collection
from itertools import combinations

import pytest

from torchrelay.controller.config import Policy
from torchrelay.controller.decide.detection.links import cut_off, have_been_probed
from torchrelay.protocol.messages import LinkState

POLICY = Policy()
DEAD_S, PROBED_S = POLICY.link_dead_s + 1.0, POLICY.link_dead_s + 0.5
Pair = tuple[int, int]


def connection(a: int, b: int, port: int, a_s: float = 0.0, b_s: float = 0.0) -> dict[int, LinkState]:
    """As both ends see it; `a_s`, `b_s`: how long either has had no answer."""
    one, other = f"10.0.0.{a}:{port}", f"10.0.0.{b}:29500"
    return {
        a: LinkState(one, other, a_s, PROBED_S, a_s or 0.9),
        b: LinkState(other, one, b_s, PROBED_S, b_s or 0.9),
    }


def network(
    world_size: int, apart: Collection[Pair] = (), unanswered_s: float = DEAD_S, *, one_sided: bool = False
) -> dict[int, tuple[LinkState, ...]]:
    """Two connections between any two ranks; those between ranks that are `apart` are dead."""
    seen: dict[int, tuple[LinkState, ...]] = dict.fromkeys(range(world_size), ())
    for a, b in combinations(range(world_size), 2):
        dead_s = unanswered_s if (a, b) in apart or (b, a) in apart else 0.0
        for port in (4000 + 100 * a + b, 7000 + 100 * a + b):
            for rank, link in connection(a, b, port, dead_s, 0.0 if one_sided else dead_s).items():
                seen[rank] = (*seen[rank], link)
    return seen


def of(rank: int, world_size: int) -> set[Pair]:
    return {(rank, other) for other in range(world_size) if other != rank}


@pytest.mark.parametrize("rank", range(4))
@pytest.mark.parametrize("one_sided", [False, True])
def test_who_reaches_nobody_while_the_others_reach_each_other_is_cut_off(rank: int, one_sided: bool) -> None:
    found = cut_off(network(4, of(rank, 4), 6.1, one_sided=one_sided), POLICY)
    assert found is not None
    others = ", ".join(str(r) for r in range(4) if r != rank)
    assert (found.rank, found.unanswered_s) == (rank, 6.1)
    assert found.reason == (
        f"rank {rank}'s connections to ranks {others} have not been answered for 6.1 s while all ranks wait; "
        "the others reach each other"
    )


@pytest.mark.parametrize("apart", [set(), of(1, 3)])
def test_nobody_is_cut_off_as_long_as_answers_come_or_may_still_come(apart: set[Pair]) -> None:
    assert cut_off(network(3, apart, POLICY.link_dead_s - 0.1), POLICY) is None


def test_what_one_rank_says_alone_is_of_connections_to_strangers() -> None:
    seen = network(3)
    database = LinkState("10.0.0.1:999", "10.9.9.9:5432", DEAD_S, PROBED_S, DEAD_S)
    assert cut_off({**seen, 1: (*seen[1], database)}, POLICY) is None


@pytest.mark.parametrize("silent", [None, ()])
def test_a_rank_that_cannot_be_asked_is_nobody_to_be_reached(silent: tuple[LinkState, ...] | None) -> None:
    seen = network(4, of(2, 4))
    found = cut_off({**seen, 3: silent}, POLICY)
    assert found is not None
    assert found.rank == 2


def test_of_two_that_are_cut_off_the_one_with_more_dead_links_is_named() -> None:
    found = cut_off(network(4, {*of(1, 4), (2, 3)}), POLICY)
    assert found is not None
    assert found.rank == 1
    assert found.reason.endswith("; ranks 2 and 3 do not reach each other either")


@pytest.mark.parametrize(
    ("world_size", "apart", "rank"), [(2, {(0, 1)}, 1), (3, {(0, 2)}, 2), (4, {(0, 2), (0, 3), (1, 2), (1, 3)}, 3)]
)
def test_where_either_end_may_be_to_blame_it_says_so(world_size: int, apart: set[Pair], rank: int) -> None:
    found = cut_off(network(world_size, apart), POLICY)
    assert found is not None
    assert found.rank == rank
    assert f"which end is to blame cannot be told: it is rank {rank} that is replaced" in found.reason


def test_nobody_is_cut_off_from_a_network_that_is_down_as_a_whole() -> None:
    assert cut_off(network(3, list(combinations(range(3), 2))), POLICY) is None
    assert cut_off(network(5, list(combinations(range(5), 2))), POLICY) is None


def test_one_connection_that_is_backing_off_beside_one_that_lives_is_given_time() -> None:
    alone_s = POLICY.link_alone_s
    for dead_s, blamed in ((DEAD_S, None), (alone_s - 0.1, None), (alone_s, 2)):
        seen = network(3)
        for rank, link in connection(1, 2, 9999, dead_s).items():
            seen[rank] = (*seen[rank], link)
        found = cut_off(seen, POLICY)
        assert (found and found.rank) == blamed, dead_s


@pytest.mark.parametrize(("probed_s", "silent_s"), [(0.5, 0.5), (0.0, 600.0), (PROBED_S, 2.1)])
def test_an_idle_connection_lives_only_if_it_was_asked_and_has_answered(probed_s: float, silent_s: float) -> None:
    seen = network(3, of(1, 3))
    for rank, link in connection(1, 2, 9999).items():
        seen[rank] = (*seen[rank], LinkState(link.local, link.remote, 0.0, probed_s, silent_s))
    found = cut_off(seen, POLICY)
    assert found is not None
    assert found.reason.startswith("rank 1's connections to ranks 0, 2 have")


def test_who_has_not_been_looked_at_for_long_enough_may_still_turn_out_to_be_cut_off() -> None:
    seen = network(3)
    assert have_been_probed(seen, POLICY)
    assert not have_been_probed({**seen, 1: None}, POLICY)
    assert have_been_probed({**seen, 1: ()}, POLICY), "the kernel tells nothing"
    assert not have_been_probed({**seen, 1: (LinkState("a:1", "b:2", 0.0, POLICY.link_dead_s - 0.1, 0.5),)}, POLICY)
