"""A shim's copies of its journals, and the agent of another node that keeps them, over real connections."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import threading
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from support.cli_harness import eventually

from torchrelay.agent.journals.journal_copies import KeptJournals as Keeper
from torchrelay.protocol.journals import journal_copy as wire
from torchrelay.protocol.messages import (
    Commit,
    CopyJournals,
    JournalContent,
    JournalCopyLost,
    JournalsCopied,
    ReplicaCheck,
)
from torchrelay.protocol.security.tls import of_one_server
from torchrelay.protocol.security.tls_contexts import of_server, to_one_server
from torchrelay.protocol.transport.wire import decode
from torchrelay.shim.journal import remote_copies
from torchrelay.shim.journal.remote_copies import CopiedJournal, RemoteJournalCopies
from torchrelay.shim.recovery.survivor import SurvivorRecovery

pytestmark = pytest.mark.core

OWN, OTHER = "n0.w0", "n1.w0"


class Link:
    """Stands for the shim's link to its own agent."""

    def __init__(self) -> None:
        self.sent: list[Any] = []

    def send(self, report: Any) -> None:
        self.sent.append(report)


class KeeperThread:
    """A keeper with an event loop of its own, as in an agent's process."""

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        self.thread = threading.Thread(target=self.loop.run_forever)
        self.thread.start()
        self.keeper = Keeper("127.0.0.1", lambda worker: worker == OWN)
        self.call(self.keeper.start())

    def call(self, work: Any) -> Any:
        return asyncio.run_coroutine_threadsafe(work, self.loop).result(60)

    def content(self, worker: str = OTHER) -> JournalContent:
        async def look() -> JournalContent:
            return self.keeper.content(worker)

        found: JournalContent = self.call(look())
        return found

    def order(self, **changes: Any) -> CopyJournals:
        values: dict[str, Any] = {"node": "n0", "host": "127.0.0.1", "port": self.keeper.port}
        return CopyJournals(**(values | {"token": self.keeper.invitation} | changes))

    @property
    def token(self) -> bytes:
        return wire.read_invitation(self.keeper.invitation)[0]

    def without_tls(self) -> socket.socket:
        return socket.create_connection(("127.0.0.1", self.keeper.port), 60)

    def stranger(self) -> socket.socket:
        """Knows the keeper, and what it is told by it, but need not know the token."""
        context = to_one_server(wire.read_invitation(self.keeper.invitation)[1])
        return context.wrap_socket(self.without_tls())

    def close(self) -> None:
        self.call(self.keeper.close())
        self.loop.call_soon_threadsafe(self.loop.stop)
        self.thread.join(10)
        self.loop.close()


class SilentKeeper:
    """Proves who it is, and then neither reads nor answers."""

    def __init__(self) -> None:
        key, certificate = of_one_server("silent")
        self._context, self._invitation = of_server(key + certificate), wire.invitation(bytes(32), certificate)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._connections: list[socket.socket] = []
        self._thread = threading.Thread(target=self._accept)
        self._thread.start()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            connection, _ = self._listener.accept()
            self._connections.append(self._context.wrap_socket(connection, server_side=True))

    def order(self) -> CopyJournals:
        return CopyJournals("n0", "127.0.0.1", self._listener.getsockname()[1], self._invitation)

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._thread.join(10)
        for connection in self._connections:
            connection.close()


@pytest.fixture
def keeper() -> Iterator[KeeperThread]:
    made = KeeperThread()
    yield made
    made.close()


class Rank:
    """The training thread's side: journals are written step by step."""

    def __init__(self, folder: Path, worker: str = OTHER) -> None:
        self.link = Link()
        self.copies = RemoteJournalCopies(self.link, worker, folder)  # type: ignore[arg-type]  # it stands for one
        self.journal = CopiedJournal(folder, self.copies)
        self.journal.write_set_up(b"set-up")
        self.step = 0

    def do_step(self) -> None:
        self.journal.write_boundary(self.step, b"boundary %d" % self.step)
        self.journal.write_gate(self.step, b"gate %d" % self.step)
        self.copies.wait()
        self.step += 1

    def until_told(self, kind: type) -> Any:
        def told() -> Any:
            self.do_step()
            return next((r for r in self.link.sent if isinstance(r, kind)), None)

        return eventually(kind.__name__, told)


@pytest.fixture
def rank(tmp_path: Path) -> Iterator[Rank]:
    made = Rank(tmp_path / "journal")
    yield made
    made.copies.assign(CopyJournals("", "", 0, b""))
    made.do_step()
    made.journal.close()


def test_whoever_has_passed_a_gate_finds_its_journal_kept(rank: Rank, keeper: KeeperThread) -> None:
    rank.do_step()
    assert rank.link.sent == []
    rank.copies.assign(keeper.order())
    told = rank.until_told(JournalsCopied)
    assert told == JournalsCopied("n0", rank.step - 1)
    for _ in range(5):
        rank.do_step()
        content, last = keeper.content(), rank.step - 1
        assert content.set_up == b"set-up"
        assert content.boundaries[last] == b"boundary %d" % last
        assert content.gates[last] == b"gate %d" % last
    assert len(keeper.content().boundaries) == 3
    assert keeper.keeper.newest_gates == {OTHER: rank.step - 1}
    assert [r for r in rank.link.sent if isinstance(r, JournalsCopied)] == [told]


def test_a_new_set_up_is_copied_too(rank: Rank, keeper: KeeperThread) -> None:
    rank.copies.assign(keeper.order())
    rank.until_told(JournalsCopied)
    rank.journal.write_set_up(b"another loop")
    rank.do_step()
    assert keeper.content().set_up == b"another loop"


def test_a_keeper_that_goes_away_is_told_and_training_goes_on(rank: Rank, keeper: KeeperThread) -> None:
    rank.copies.assign(keeper.order())
    rank.until_told(JournalsCopied)
    keeper.call(keeper.keeper.close())
    lost = rank.until_told(JournalCopyLost)
    assert lost.node == "n0"
    rank.do_step()
    assert len([r for r in rank.link.sent if isinstance(r, JournalCopyLost)]) == 1


def test_a_silent_keeper_holds_training_up_no_longer_than_its_time(rank: Rank, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remote_copies, "ANSWER_TIMEOUT_S", 3.0)  # it is long enough to prove who it is
    silent = SilentKeeper()
    rank.copies.assign(silent.order())
    lost = rank.until_told(JournalCopyLost)
    silent.close()
    assert "does not answer" in lost.reason


def test_one_that_does_not_even_say_who_it_is_holds_training_up_no_longer(
    rank: Rank, keeper: KeeperThread, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(remote_copies, "ANSWER_TIMEOUT_S", 0.2)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        rank.copies.assign(keeper.order(port=silent.getsockname()[1]))
        lost = rank.until_told(JournalCopyLost)
    assert "does not prove that it is the keeper" in lost.reason


def test_the_word_that_a_keeper_is_gone_ends_the_wait_for_it(rank: Rank) -> None:
    silent = SilentKeeper()
    rank.copies.assign(silent.order())
    eventually("a connection", lambda: rank.journal.write_boundary(0, b"b") or rank.copies._is_open)
    rank.journal.write_gate(0, b"g")
    waiting = threading.Thread(target=rank.copies.wait)
    waiting.start()
    rank.copies.assign(CopyJournals("", "", 0, b""))
    waiting.join(remote_copies.ANSWER_TIMEOUT_S - 1)
    assert not waiting.is_alive()
    silent.close()


class NotedLock:
    """A lock that says when somebody has to wait for it."""

    def __init__(self, contended: threading.Event) -> None:
        self._lock, self._contended = threading.Lock(), contended

    def __enter__(self) -> None:
        if not self._lock.acquire(blocking=False):
            self._contended.set()
            self._lock.acquire()

    def __exit__(self, *exception: object) -> None:
        self._lock.release()


class SlowToShutDown(socket.socket):
    """Stays at the beginning of `shutdown` until told otherwise, as a thread does that the kernel does not run."""

    def __init__(self, descriptor: int, closed: threading.Event) -> None:
        super().__init__(fileno=descriptor)
        self.settimeout(60)
        self.begun, self.go_on, self._told_closed = threading.Event(), threading.Event(), closed

    def shutdown(self, how: int) -> None:
        self.begun.set()
        assert self.go_on.wait(60)
        super().shutdown(how)

    def close(self) -> None:
        super().close()
        self._told_closed.set()


def test_a_connection_is_not_closed_while_the_word_that_its_keeper_is_gone_ends_it(
    rank: Rank, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The descriptor could be another file's by the time that it is shut down."""
    came_there = threading.Event()
    rank.copies._lock = NotedLock(came_there)  # type: ignore[assignment]  # a stand-in
    keeper = SilentKeeper()
    rank.copies.assign(keeper.order())
    eventually("a connection", lambda: rank.journal.write_boundary(0, b"b") or rank.copies._is_open)
    rank.journal.write_gate(0, b"g")
    assert rank.copies._connection is not None
    slow = SlowToShutDown(rank.copies._connection.detach(), came_there)
    rank.copies._connection = slow
    monkeypatch.setattr(remote_copies, "_shut_down", lambda connection: connection.shutdown(socket.SHUT_RDWR))
    on_the_link_s_thread = threading.Thread(target=rank.copies.let_go)
    on_the_link_s_thread.start()
    assert slow.begun.wait(60)
    waiting = threading.Thread(target=rank.copies.wait)
    waiting.start()
    keeper.close()
    assert came_there.wait(60), "through the closing, or to the lock in front of it"
    still_open = slow.fileno() >= 0
    slow.go_on.set()
    on_the_link_s_thread.join(60)
    waiting.join(60)
    assert still_open
    assert slow.fileno() == -1


def test_a_rank_that_stands_sends_a_new_keeper_all_it_has(
    rank: Rank, keeper: KeeperThread, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(remote_copies, "STANDING_TIMEOUT_S", 60.0)
    for _ in range(5):
        rank.do_step()
    rank.journal.write_boundary(5, b"boundary 5")
    engine: Any = SimpleNamespace(journal=rank.journal)
    recovery, got = SurvivorRecovery(engine, rank.link), []  # type: ignore[arg-type]  # it stands for one
    standing = threading.Thread(target=lambda: got.append(recovery.raw_order()), daemon=True)
    standing.start()
    recovery.handle(keeper.order())
    eventually("the word of it", lambda: rank.link.sent == [JournalsCopied("n0", 4)])
    content = keeper.content()
    assert content.set_up == b"set-up"
    assert content.boundaries == {n: b"boundary %d" % n for n in (3, 4, 5)}
    assert content.gates == {n: b"gate %d" % n for n in (3, 4)}
    recovery.handle(Commit(1))
    standing.join(60)
    assert got == [Commit(1)]
    rank.step = 5
    for _ in range(3):
        rank.do_step()
    assert max(keeper.content().gates) == 7
    assert rank.link.sent == [JournalsCopied("n0", 4)]


def test_a_rank_that_stands_goes_on_without_a_new_keeper_that_says_nothing(
    rank: Rank, keeper: KeeperThread, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(remote_copies, "STANDING_TIMEOUT_S", 0.2)
    rank.do_step()
    with socket.create_server(("127.0.0.1", 0)) as silent:
        rank.copies.assign(keeper.order(port=silent.getsockname()[1]))
        rank.copies.catch_up()
    (lost,) = rank.link.sent
    assert isinstance(lost, JournalCopyLost)
    rank.copies.assign(keeper.order())
    rank.until_told(JournalsCopied)


def test_a_gate_that_is_done_again_is_answered_for_twice(rank: Rank, keeper: KeeperThread) -> None:
    rank.copies.assign(keeper.order())
    rank.until_told(JournalsCopied)
    rank.journal.write_gate(rank.step, b"interrupted")
    for _ in range(3):
        rank.do_step()
    assert [r for r in rank.link.sent if isinstance(r, JournalCopyLost)] == []


def test_a_keeper_that_cannot_be_reached_is_told(rank: Rank, keeper: KeeperThread) -> None:
    with socket.create_server(("127.0.0.1", 0)) as closed:
        port = closed.getsockname()[1]
    rank.copies.assign(keeper.order(port=port))
    assert rank.until_told(JournalCopyLost).node == "n0"


@pytest.mark.parametrize(
    "said",
    [
        wire.greeting(b"x" * wire.TOKEN_BYTES, OTHER),
        b"GET / HTTP/1.1\r\nHost: here\r\nAccept: */*\r\n\r\n",
    ],
    ids=["wrong token", "garbage"],
)
def test_strangers_are_refused_and_nothing_of_theirs_is_kept(said: bytes, keeper: KeeperThread) -> None:
    for connect in (keeper.stranger, keeper.without_tls):
        with connect() as stranger:
            stranger.sendall(said)
            with contextlib.suppress(ConnectionError):  # refused already
                stranger.sendall(wire.frame(wire.BOUNDARY, 3, wire.in_parts([b"forged"], ())))
            _until_closed(stranger)
    assert keeper.content() == JournalContent(OTHER)
    assert keeper.keeper.newest_gates == {}


def test_nobody_writes_copies_for_the_keepers_own_workers(keeper: KeeperThread) -> None:
    with keeper.stranger() as stranger:
        stranger.sendall(
            wire.greeting(keeper.token, OWN) + wire.frame(wire.BOUNDARY, 3, wire.in_parts([b"forged"], ()))
        )
        _until_closed(stranger)
    assert keeper.content(OWN) == JournalContent(OWN)


def test_a_damaged_journal_is_not_kept_and_ends_the_connection(keeper: KeeperThread) -> None:
    damaged = bytearray(wire.frame(wire.GATE, 4, b"journal"))
    damaged[-1] ^= 1
    whole = wire.frame(wire.BOUNDARY, 4, wire.in_parts([b"whole"], ()))
    with keeper.stranger() as connection:
        connection.sendall(wire.greeting(keeper.token, OTHER) + whole)
        connection.sendall(damaged)
        assert _until_closed(connection) == b""
    assert keeper.content() == JournalContent(OTHER, {4: b"whole"}, {}, b"")


class Tap:
    """Between a worker and its keeper: notes down all that the worker sends."""

    def __init__(self, port: int) -> None:
        self.heard = bytearray()
        self._keeper = ("127.0.0.1", port)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = int(self._listener.getsockname()[1])
        self._threads = [threading.Thread(target=self._accept)]
        self._threads[0].start()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                worker, _ = self._listener.accept()
                keeper = socket.create_connection(self._keeper, 10)
                keeper.settimeout(None)
                for ends in ((worker, keeper, self.heard), (keeper, worker, bytearray())):
                    self._threads.append(threading.Thread(target=self._pass_on, args=ends))
                    self._threads[-1].start()

    @staticmethod
    def _pass_on(source: socket.socket, target: socket.socket, noted: bytearray) -> None:
        with source, target, contextlib.suppress(OSError):
            while data := source.recv(65536):
                noted += data
                target.sendall(data)
            target.shutdown(socket.SHUT_WR)

    def close(self) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for thread in self._threads:
            thread.join(10)


def test_who_listens_learns_nothing_and_what_was_heard_replaces_no_copy(rank: Rank, keeper: KeeperThread) -> None:
    tap = Tap(keeper.keeper.port)
    rank.copies.assign(keeper.order(port=tap.port))
    rank.until_told(JournalsCopied)
    kept = keeper.content()
    assert kept.gates
    for secret in (keeper.token, b"boundary 0", b"set-up", OTHER.encode()):
        assert secret not in bytes(tap.heard)
    with keeper.without_tls() as stranger:
        stranger.sendall(bytes(tap.heard))
        _until_closed(stranger)
    assert keeper.content() == kept
    rank.copies.assign(CopyJournals("", "", 0, b""))
    rank.do_step()
    tap.close()


def test_nobody_else_is_taken_for_the_keeper(rank: Rank, keeper: KeeperThread) -> None:
    impostor = KeeperThread()
    try:
        rank.copies.assign(keeper.order(port=impostor.keeper.port))
        told = rank.until_told(JournalCopyLost)
        assert "does not prove that it is the keeper" in told.reason
        assert impostor.keeper.newest_gates == {}
    finally:
        impostor.close()


def _until_closed(connection: socket.socket) -> bytes:
    """What still came. A reset is an end as well: what was sent last had not been read."""
    data = b""
    try:
        while more := connection.recv(4096):
            data += more
    except ConnectionResetError:
        return data
    return data


def test_what_a_rank_tells_of_its_tensors_comes_to_the_keeper_from_before_it_was_one_and_from_then_on(
    keeper: KeeperThread, rank: Rank
) -> None:
    checks = [ReplicaCheck(number, {"w": f"digest {number}"}) for number in range(8)]
    for check in checks[:7]:
        rank.copies.check(check)
    rank.copies.assign(keeper.order())
    rank.until_told(JournalsCopied)
    rank.copies.check(checks[7])
    rank.do_step()
    told = [decode(frame, {"ReplicaCheck": ReplicaCheck}) for _, frame in sorted(keeper.content().checks.items())]
    assert told == checks[2:]
