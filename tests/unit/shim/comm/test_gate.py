"""Ranks in threads of this process, meeting through a real store."""

from __future__ import annotations

import itertools
import socket
import threading
import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor

import pytest
import torch.distributed as dist

from torchrelay.protocol.errors import StateMismatchError
from torchrelay.protocol.names import GATE_SECRET_BYTES
from torchrelay.shim.comm import gate_links
from torchrelay.shim.comm.gate import Gate, connect, distances
from torchrelay.shim.comm.gate_links import GateListener
from torchrelay.shim.comm.generations.generation_store import join_store, serve_store

_names = itertools.count()
SECRET = b"of the generation".ljust(GATE_SECRET_BYTES, b".")


@pytest.fixture(params=["one machine", "machines"])
def machines(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if request.param == "machines":
        monkeypatch.setattr(gate_links, "is_local", lambda connection: False)


def listening(rank: int, secret: bytes = SECRET, generation: int = 0) -> GateListener:
    return GateListener("127.0.0.1", secret, generation, rank)


@pytest.fixture(scope="module")
def pool() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(16) as pool:
        yield pool


@pytest.fixture(scope="module")
def port() -> Iterator[int]:
    store, port = serve_store()
    yield port
    del store


def meet(pool: ThreadPoolExecutor, port: int, world_size: int) -> list[Gate]:
    name = f"test-{next(_names)}"

    def one(rank: int) -> Gate:
        store = dist.PrefixStore(name, join_store("127.0.0.1", port))
        deadline = time.monotonic() + 30
        return connect(
            rank, world_size, store, "127.0.0.1", listening(rank), 0, SECRET, lambda: deadline - time.monotonic()
        )

    return [future.result(60) for future in [pool.submit(one, rank) for rank in range(world_size)]]


@pytest.mark.parametrize(
    ("world_size", "rounds"), [(1, 0), (2, 1), (3, 2), (4, 2), (5, 3), (8, 3), (9, 4), (16384, 14)]
)
def test_the_number_of_rounds_grows_with_the_logarithm(world_size: int, rounds: int) -> None:
    assert len(distances(world_size)) == rounds


@pytest.mark.parametrize("world_size", [1, 2, 3, 5, 8])
def test_nobody_passes_before_the_last_one_is_there(
    machines: None, pool: ThreadPoolExecutor, port: int, world_size: int
) -> None:
    gates = meet(pool, port, world_size)
    for number in range(3):
        late = number % world_size
        passed: list[Future[bool]] = [pool.submit(g.wait, 0, number) for rank, g in enumerate(gates) if rank != late]
        if passed:
            with pytest.raises(TimeoutError):
                next(iter(passed)).result(0.05)
            assert not any(p.done() for p in passed)
        gates[late].wait(0, number)
        for p in passed:
            p.result(60)


@pytest.mark.parametrize("world_size", [2, 3, 5])
def test_every_rank_hears_of_one_that_is_at_another_step(pool: ThreadPoolExecutor, port: int, world_size: int) -> None:
    gates = meet(pool, port, world_size)
    answers = [pool.submit(g.wait, 0, 8 if rank == 1 else 7) for rank, g in enumerate(gates)]
    for answer in answers:
        with pytest.raises(StateMismatchError, match="disagree"):
            answer.result(60)


def test_a_rank_that_has_lost_count_does_not_disturb(pool: ThreadPoolExecutor, port: int) -> None:
    gates = meet(pool, port, 3)
    for answer in [pool.submit(g.wait, 0, -1 if rank == 1 else 7) for rank, g in enumerate(gates)]:
        answer.result(60)


@pytest.mark.parametrize("world_size", [1, 2, 3, 5])
def test_ranks_that_meet_between_two_gates_hear_if_one_of_them_says_yes(
    pool: ThreadPoolExecutor, port: int, world_size: int
) -> None:
    gates = meet(pool, port, world_size)
    for number, said in enumerate((world_size - 1, None)):
        for answer in [pool.submit(g.wait, 0, number) for g in gates]:
            answer.result(60)
        met = [pool.submit(g.meet, 0, number, rank == said, 30.0) for rank, g in enumerate(gates)]
        assert [m.result(60) for m in met] == [said is not None] * world_size


@pytest.mark.parametrize("world_size", [1, 2, 3, 5])
def test_in_a_gate_all_hear_alike_whether_one_says_yes_and_none_is_busy(
    pool: ThreadPoolExecutor, port: int, world_size: int
) -> None:
    gates, last = meet(pool, port, world_size), world_size - 1
    for number, (says_yes, is_busy) in enumerate([(last, None), (None, 0), (last, 0), (None, None), (0, None)]):
        passed = [
            pool.submit(g.wait, 0, number, yes=rank == says_yes, busy=rank == is_busy) for rank, g in enumerate(gates)
        ]
        assert [p.result(60) for p in passed] == [says_yes is not None and is_busy is None] * world_size


@pytest.mark.parametrize("world_size", [2, 3, 5])
def test_a_meeting_that_was_left_early_is_gone_on_with_before_the_next_gate(
    machines: None, pool: ThreadPoolExecutor, port: int, world_size: int
) -> None:
    *early, late = meet(pool, port, world_size)
    assert [g.meet(0, 4, False, 0.0) for g in early] == [None] * len(early)
    met = [pool.submit(g.meet, 0, 4, False, None) for g in early]
    with pytest.raises(TimeoutError):
        met[-1].result(0.05)
    assert late.meet(0, 4, True, None) is True
    assert [m.result(60) for m in met] == [True] * len(early)
    for answer in [pool.submit(g.wait, 0, 5) for g in (*early, late)]:
        answer.result(60)


def test_a_rank_that_meets_where_another_one_is_at_its_gate_is_refused(pool: ThreadPoolExecutor, port: int) -> None:
    one, other = meet(pool, port, 2)
    answers = [pool.submit(one.meet, 0, 7, True, None), pool.submit(other.wait, 0, 7)]
    for answer in answers:
        with pytest.raises(StateMismatchError, match="disagree"):
            answer.result(60)


def test_another_generation_is_refused_even_then(pool: ThreadPoolExecutor, port: int) -> None:
    gates = meet(pool, port, 2)
    for answer in [pool.submit(g.wait, rank, -1) for rank, g in enumerate(gates)]:
        with pytest.raises(StateMismatchError):
            answer.result(60)


def test_a_rank_that_dies_frees_the_one_that_waits_for_it(pool: ThreadPoolExecutor, port: int) -> None:
    gates = meet(pool, port, 2)
    waiting = pool.submit(gates[0].wait, 0, 1)
    gates[1].close()
    with pytest.raises(RuntimeError, match="Connection closed"):
        waiting.result(60)
    with pytest.raises(RuntimeError, match="Connection closed"):
        gates[0].wait(0, 2)


def test_a_rank_that_is_let_go_waits_no_more_and_its_peer_does_not_notice(pool: ThreadPoolExecutor, port: int) -> None:
    first, second = meet(pool, port, 2)
    waiting = pool.submit(first.wait, 0, 5)
    with pytest.raises(TimeoutError):
        waiting.result(0.2)
    first.let_go()
    with pytest.raises(RuntimeError, match="Connection closed in the gate of step 5"):
        waiting.result(30)
    assert second.wait(0, 5) is False, "it has heard of the first one before"


def test_a_caller_without_the_secret_is_turned_away(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gate_links, "_HELLO_TIMEOUT_S", 0.2)
    listener = listening(0)
    for sent in (b"GET / HTTP/1.1\r\n\r\n" + bytes(96), b"", b"short"):
        stranger = socket.create_connection(("127.0.0.1", listener.port))
        stranger.sendall(sent)
        assert listener.accept(30) is None
        stranger.close()
    listener.close()


def test_a_rank_that_waits_for_callers_comes_loose_when_it_is_woken() -> None:
    listener = listening(0)
    accepting = threading.Event()
    failed: list[OSError] = []

    def accept() -> None:
        accepting.set()
        try:
            listener.accept(60)
        except OSError as error:
            failed.append(error)

    thread = threading.Thread(target=accept)
    thread.start()
    assert accepting.wait(60)
    listener.wake()
    thread.join(60)
    assert failed
    listener.close()
    listener.wake()  # another thread, which has not heard of it yet


def test_of_a_gate_whose_store_is_lost_no_socket_is_left_open() -> None:
    class Lost:
        def set(self, key: str, value: bytes) -> None:
            raise dist.DistNetworkError("Failed to recv, got 0 bytes")

    listener = listening(0)
    with pytest.raises(dist.DistNetworkError):
        connect(0, 2, Lost(), "127.0.0.1", listener, 0, SECRET, lambda: 30.0)
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", listener.port), timeout=30)


def test_a_peer_that_never_comes_is_an_error(port: int) -> None:
    store = dist.PrefixStore(f"test-{next(_names)}", join_store("127.0.0.1", port))
    peer = listening(1)
    store.set("gate/1", b"127.0.0.1 %d %s" % (peer.port, peer.nonce.hex().encode()))
    with pytest.raises(RuntimeError, match="gate was connected"):
        connect(0, 2, store, "127.0.0.1", listening(0), 0, SECRET, lambda: 0.2)
    peer.close()


def test_a_peer_that_says_it_cannot_is_not_waited_for(port: int) -> None:
    store = dist.PrefixStore(f"test-{next(_names)}", join_store("127.0.0.1", port))
    store.set("gate/1", b"")
    with pytest.raises(RuntimeError, match="rank 1 could not connect its gate"):
        connect(0, 2, store, "127.0.0.1", listening(0), 0, SECRET, lambda: 60.0)
