"""A gate between machines, with somebody in the middle of the wire.

All ends are made to think that they are on machines of their own.
"""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from torchrelay.protocol.errors import StateMismatchError
from torchrelay.protocol.names import GATE_SECRET_BYTES
from torchrelay.shim.comm import gate_links
from torchrelay.shim.comm.gate import Gate, connect, key_of
from torchrelay.shim.comm.gate_links import GateListener

pytestmark = pytest.mark.core

SECRET = bytes(range(GATE_SECRET_BYTES))
GENERATION = 1
MESSAGE_BYTES, PROOF_BYTES = 24, 16
HELLO_BYTES = 3 * 8 + 1 + 16 + 32


class Middle:
    """Who calls `port` reaches it through here. `said`: all that callers said; `meddle` may give another piece for each."""

    def __init__(self, port: int) -> None:
        self._target = port
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = int(self._listener.getsockname()[1])
        self.said = bytearray()
        self.meddle: Callable[[bytes], bytes] = lambda data: data
        self._sockets: list[socket.socket] = [self._listener]
        self._threads = [threading.Thread(target=self._accept)]
        self._threads[0].start()

    def say(self, data: bytes) -> None:
        """In the caller's place."""
        self._towards.sendall(data)

    def close(self) -> None:
        for each in self._sockets:
            with contextlib.suppress(OSError):  # its peer is gone
                each.shutdown(socket.SHUT_RDWR)
        for thread in list(self._threads):
            thread.join()
        for each in self._sockets:
            each.close()

    def _accept(self) -> None:
        caller, _ = self._listener.accept()
        self._towards = socket.create_connection(("127.0.0.1", self._target))
        self._sockets += [caller, self._towards]
        for source, target, is_told in ((caller, self._towards, True), (self._towards, caller, False)):
            thread = threading.Thread(target=self._forward, args=(source, target, is_told))
            self._threads.append(thread)
            thread.start()

    def _forward(self, source: socket.socket, target: socket.socket, is_told: bool) -> None:
        with contextlib.suppress(OSError):  # one of the two is gone
            while data := source.recv(4096):
                if is_told:
                    self.said += data
                target.sendall(self.meddle(data) if is_told else data)
            target.shutdown(socket.SHUT_WR)


class Store:
    """As the job's store, where whoever can reach it reads and writes: it names the middle in the place of rank 0."""

    def __init__(self) -> None:
        self.middle: Middle | None = None
        self.all_said = b""
        self._told: dict[str, bytes] = {}
        self._news = threading.Condition()

    def set(self, key: str, value: bytes) -> None:
        with self._news:
            self.all_said += value
            if key == key_of(0):
                host, port, nonce = value.split()
                self.middle = Middle(int(port))
                value = b"%s %d %s" % (host, self.middle.port, nonce)
            self._told[key] = value
            self._news.notify_all()

    def get(self, key: str) -> bytes:
        with self._news:
            assert self._news.wait_for(lambda: key in self._told, 30)
            return self._told[key]


class Pair:
    """Rank 1 speaks to rank 0 through `middle`."""

    def __init__(self, pool: ThreadPoolExecutor) -> None:
        self.pool, self.store = pool, Store()
        connecting = [pool.submit(self._connect, rank) for rank in range(2)]
        self.gates = [future.result(60) for future in connecting]
        assert self.store.middle is not None
        self.middle = self.store.middle

    def _connect(self, rank: int) -> Gate:
        listener = GateListener("127.0.0.1", SECRET, GENERATION, rank)
        return connect(rank, 2, self.store, "127.0.0.1", listener, GENERATION, SECRET, lambda: 30.0)

    def pass_together(self, number: int) -> None:
        for future in [self.pool.submit(gate.wait, GENERATION, number) for gate in self.gates]:
            future.result(60)

    def close(self) -> None:
        for gate in self.gates:
            gate.close()
        self.middle.close()


@pytest.fixture
def pair(monkeypatch: pytest.MonkeyPatch) -> Iterator[Pair]:
    monkeypatch.setattr(gate_links, "is_local", lambda connection: False)
    with ThreadPoolExecutor(4) as pool:
        pair = Pair(pool)
        yield pair
        pair.close()


def test_gates_are_passed_and_the_wire_carries_a_proof_with_each_message_but_never_the_secret(pair: Pair) -> None:
    for number in range(3):
        pair.pass_together(number)
    assert len(pair.middle.said) == HELLO_BYTES + 3 * (MESSAGE_BYTES + PROOF_BYTES)
    for told in (bytes(pair.middle.said), pair.store.all_said):
        assert SECRET not in told
        assert SECRET.hex().encode() not in told


def test_nobody_says_for_a_rank_that_is_late_that_all_are_here(pair: Pair) -> None:
    """The word is the right one: who listens knows generation, number and flags."""
    pair.pass_together(7)
    message = bytes(pair.middle.said[HELLO_BYTES : HELLO_BYTES + MESSAGE_BYTES])
    waiting = pair.pool.submit(pair.gates[0].wait, GENERATION, 8)
    pair.middle.say(message.replace((7).to_bytes(8, "little"), (8).to_bytes(8, "little")) + bytes(PROOF_BYTES))
    with pytest.raises(RuntimeError, match="Connection closed in the gate of step 8: what came there is not what"):
        waiting.result(60)


def test_a_message_that_is_played_again_lets_nobody_through(pair: Pair) -> None:
    """At a gate of the same number, as after a step that is done again."""
    pair.pass_together(7)
    waiting = pair.pool.submit(pair.gates[0].wait, GENERATION, 7)
    pair.middle.say(bytes(pair.middle.said[HELLO_BYTES:]))
    with pytest.raises(RuntimeError, match="is not what the peer has sent"):
        waiting.result(60)


def test_a_rank_does_not_take_its_own_words_for_its_peers(pair: Pair) -> None:
    """Both say the same at a gate, so that its own word would let it through."""
    pair.pass_together(7)
    up, _ = pair.gates[0]._rounds[0]
    own: list[bytes] = []
    up.say = lambda message: own.append(message + up._proof(message))  # type: ignore[method-assign]
    waiting = pair.pool.submit(pair.gates[0].wait, GENERATION, 8)
    while not own:
        pass
    pair.middle.say(own[0])
    with pytest.raises(RuntimeError, match="is not what the peer has sent"):
        waiting.result(60)


def test_a_word_that_is_changed_on_its_way_is_not_believed(pair: Pair) -> None:
    """It says now that the rank is busy."""
    pair.pass_together(7)
    pair.middle.meddle = lambda data: data[:16] + bytes([data[16] ^ 4]) + data[17:]
    waiting, _ = (pair.pool.submit(gate.wait, GENERATION, 8) for gate in pair.gates)
    with pytest.raises(RuntimeError, match="is not what the peer has sent"):
        waiting.result(60)


def test_what_the_peer_itself_says_is_heard_as_before(pair: Pair) -> None:
    answers = [pair.pool.submit(gate.wait, GENERATION, 7 + rank) for rank, gate in enumerate(pair.gates)]
    for answer in answers:
        with pytest.raises(StateMismatchError, match="disagree"):
            answer.result(60)
