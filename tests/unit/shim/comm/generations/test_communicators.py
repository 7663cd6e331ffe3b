"""Two ranks in two threads of this process."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch
import torch.distributed as dist

from torchrelay.protocol.errors import StateMismatchError, UnsupportedError
from torchrelay.protocol.logs.log_lines import LogLines, LogPart
from torchrelay.protocol.names import GATE_SECRET_BYTES
from torchrelay.shim.adapters.process_groups import process_group
from torchrelay.shim.backends import registry
from torchrelay.shim.comm.generations import communicators
from torchrelay.shim.comm.generations.communication_failure import is_communication_failure
from torchrelay.shim.comm.generations.communicators import Communicators
from torchrelay.shim.comm.generations.generation_store import serve_store

SECRET = b"of the generation".ljust(GATE_SECRET_BYTES, b".")


@pytest.fixture
def pool() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(2) as pool:
        yield pool


def both(pool: ThreadPoolExecutor, ranks: list[Communicators], act: Callable[[Communicators], Any]) -> list[Any]:
    return [future.result(60) for future in [pool.submit(act, comms) for comms in ranks]]


@pytest.fixture
def ranks(pool: ThreadPoolExecutor) -> list[Communicators]:
    ranks = [Communicators(rank, 2, "127.0.0.1", LogLines(LogPart.SHIM)) for rank in range(2)]
    store, port = serve_store()
    both(pool, ranks, lambda c: c.rebuild(1, "127.0.0.1", port, SECRET))
    ranks[0].now.stores.append(store)
    return ranks


def test_ranks_of_a_new_generation_agree(ranks: list[Communicators], pool: ThreadPoolExecutor) -> None:
    both(pool, ranks, lambda c: c.gate(7))
    both(pool, ranks, lambda c: c.gate(1))
    assert [c.now.number for c in ranks] == [1, 1]


def test_ranks_that_are_at_different_boundaries_do_not(ranks: list[Communicators], pool: ThreadPoolExecutor) -> None:
    futures = [pool.submit(comms.gate, 7 + comms.rank) for comms in ranks]
    with pytest.raises(StateMismatchError, match="disagree"):
        futures[0].result(60)
    with pytest.raises(StateMismatchError, match="disagree"):
        futures[1].result(60)


def test_a_rank_that_waits_in_the_gate_comes_loose(ranks: list[Communicators], pool: ThreadPoolExecutor) -> None:
    waits = threading.Event()

    def wait() -> None:
        waits.set()
        ranks[0].gate(1)

    future = pool.submit(wait)
    assert waits.wait(60)
    assert ranks[1].break_all() > 0
    with pytest.raises(RuntimeError) as broken:
        future.result(60)
    assert is_communication_failure(broken.value)


def test_an_abandoned_generation_leaves_the_one_before_whole(
    ranks: list[Communicators], pool: ThreadPoolExecutor
) -> None:
    for each in ranks:
        each.committed()
    store, port = serve_store()
    both(pool, ranks, lambda c: c.rebuild(2, "127.0.0.1", port, SECRET))
    assert [c.now.number for c in ranks] == [2, 2]
    both(pool, ranks, lambda c: c.go_back())
    assert [c.now.number for c in ranks] == [1, 1]
    both(pool, ranks, lambda c: c.gate(1))
    assert store is not None


def test_who_waits_for_a_joiner_that_is_lost_comes_loose_when_its_move_is_abandoned_and_goes_on_as_before(
    ranks: list[Communicators], pool: ThreadPoolExecutor
) -> None:
    for each in ranks:
        each.committed()
    _store, port = serve_store()
    abandoned = threading.Event()
    alone = pool.submit(ranks[0].rebuild, 2, "127.0.0.1", port, SECRET, lambda generation: abandoned.is_set())
    while ranks[0].now.number != 2:
        pass
    abandoned.set()
    ranks[0].break_new(2)
    with pytest.raises(RuntimeError):
        alone.result(60)
    assert ranks[0].break_new(1) == 0, "what was there before is not touched"
    ranks[0].go_back()
    both(pool, ranks, lambda c: c.gate(1))


def test_a_generation_that_is_over_before_it_is_built_is_not_waited_for(ranks: list[Communicators]) -> None:
    for each in ranks:
        each.committed()
    _store, port = serve_store()
    with pytest.raises(RuntimeError, match="generation 2 is over before its communicators stand"):
        ranks[0].rebuild(2, "127.0.0.1", port, SECRET, lambda generation: generation == 2)


def test_without_a_secret_no_gate_is_connected(ranks: list[Communicators]) -> None:
    store, port = serve_store()
    with pytest.raises(UnsupportedError, match="no secret for the gate"):
        ranks[0].rebuild(2, "127.0.0.1", port, b"short")
    assert store.num_keys() == 0, "nothing was said of where it listens"


def test_two_generations_do_not_hear_each_other(ranks: list[Communicators], pool: ThreadPoolExecutor) -> None:
    store, port = serve_store()
    both(pool, ranks, lambda c: c.rebuild(2, "127.0.0.1", port, SECRET))
    for each in ranks:
        each.committed()
    both(pool, ranks, lambda c: c.gate(1))
    assert store.num_keys() > 0


def test_a_process_that_is_in_other_groups_than_its_peers_says_so_at_once(
    ranks: list[Communicators], pool: ThreadPoolExecutor, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = threading.local()
    world = ("0", (0, 1), "gloo", "")
    monkeypatch.setattr(communicators.groups, "described", lambda: (world, *own.more))
    store, port = serve_store()

    def rebuild(comms: Communicators) -> None:
        own.more = () if comms.rank else (("3", (0, 1), "gloo", ""),)
        comms.rebuild(2, "127.0.0.1", port, SECRET, joins=comms.rank == 1)

    survivor, joiner = [pool.submit(rebuild, comms) for comms in ranks]
    with pytest.raises(StateMismatchError, match="'3' has ranks 0, 1 in rank 0, and no members in this process"):
        joiner.result(20)
    survivor.result(20)  # it has no group to wait in here
    assert store is not None


def test_a_group_of_one_rank_is_connected_in_a_new_process() -> None:
    """Without a communicator its collectives have no results in their futures, which hooks of a backward read."""
    process_group.init_fake(0, 1, "gloo", None, dist.init_process_group, registry.unconnected)
    try:
        store, port = serve_store()
        comms = Communicators(0, 1, "127.0.0.1", LogLines(LogPart.SHIM))
        comms.rebuild(1, "127.0.0.1", port, SECRET, joins=True)
        work = dist.all_reduce(torch.ones(2), async_op=True)
        assert [tensor.tolist() for tensor in work.get_future().wait()] == [[1.0, 1.0]]
        del store
    finally:
        dist.destroy_process_group()
