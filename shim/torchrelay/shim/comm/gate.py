"""The commit gate: a barrier of all ranks over TCP connections of our own, dissemination style.

In round k a rank tells the one 2^k above it that it and all that it has heard of are here, and waits to be told the same by
the one 2^k below; after ceil(log2(world size)) rounds everybody knows of everybody (Hensgen, Finkel, Manber: Two Algorithms
for Barrier Synchronization, 1988). A barrier of gloo does the same, but wakes two more threads for it.
"""

from __future__ import annotations

import contextlib
import secrets
import select
import socket
import struct
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from torchrelay.protocol.errors import StateMismatchError

_MESSAGE = struct.Struct("<qqq")
"""Generation, number of the gate, and flags of everybody heard of so far."""
_AGREED, _YES, _BUSY = 1, 2, 4
"""Whether all said the same, whether one said yes, and whether one said that it is busy."""
_OF_ANY = _YES | _BUSY
_HELLO = struct.Struct("<16sqq")
"""Token of the rank that is called, the caller's rank, the round."""
_HELLO_TIMEOUT_S = 5.0


class GateListener:
    """Where peers connect to."""

    def __init__(self, bind_host: str) -> None:
        self.token = secrets.token_bytes(16)
        self._closing = threading.Lock()
        family, kind, protocol, _, address = socket.getaddrinfo(bind_host, 0, type=socket.SOCK_STREAM)[0]
        self._socket = socket.socket(family, kind, protocol)
        self._socket.bind(address)
        self._socket.listen(128)
        self.port = int(self._socket.getsockname()[1])

    def accept(self, timeout_s: float) -> tuple[int, int, socket.socket] | None:
        """Caller's rank, round, connection; None for a caller without the token. Raises OSError."""
        self._socket.settimeout(timeout_s)
        connection, _ = self._socket.accept()
        connection.settimeout(_HELLO_TIMEOUT_S)
        try:
            token, rank, number = _HELLO.unpack(_receive(connection, _HELLO.size))
        except OSError:
            token, rank, number = b"", -1, -1
        if not secrets.compare_digest(token, self.token):
            connection.close()
            return None
        return rank, number, connection

    def wake(self) -> None:
        """`accept` raises OSError from here on. On any thread."""
        with self._closing, contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """On the thread that accepts: closed under it, the descriptor could be another file's when it waits again."""
        with self._closing:
            self._socket.close()


class _Connection(socket.socket):
    """Closed without a ResourceWarning when the process ends: the script's own warnings are not ours to add to."""

    def __init__(self, made: socket.socket) -> None:
        super().__init__(fileno=made.detach())
        self.settimeout(None)
        self.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def __del__(self) -> None:
        self.close()


@dataclass
class _Pass:
    """One way through all rounds, which can be left in the middle and gone on with."""

    generation: int
    number: int
    flags: int
    round: int = 0
    sent: bool = False


class Gate:
    """The connections of one generation; `ups[k]` and `downs[k]` are those of round k."""

    def __init__(self, ups: list[socket.socket], downs: list[socket.socket]) -> None:
        self._rounds = list(zip(map(_Connection, ups), map(_Connection, downs)))
        self._open: _Pass | None = None
        """A meeting that was left early."""

    def wait(self, generation: int, number: int, *, yes: bool = False, busy: bool = False) -> bool:
        """Returns when every rank has called it with the same numbers; -1 for a rank that has lost count.

        True, on all ranks alike, if one of them said `yes` and none that it is `busy`.

        Raises RuntimeError when a connection is lost, StateMismatchError on all ranks when one said something else.
        """
        through = _Pass(generation, number, _AGREED | (_YES if yes else 0) | (_BUSY if busy else 0))
        self._go_through(through, None)
        return through.flags & _OF_ANY == _YES

    def meet(self, generation: int, number: int, yes: bool, patience_s: float | None) -> bool | None:
        """The same, apart from the gates: whether any rank said `yes`. Each rank calls it between the same two gates.

        None where not all were there in time: it is to be called again then, before the next gate, and without `patience_s`.
        """
        if self._open is None:
            self._open = _Pass(generation, -2 - number, _AGREED | (_YES if yes else 0))
        met = self._open
        if not self._go_through(met, None if patience_s is None else time.monotonic() + patience_s):
            return None
        self._open = None
        return bool(met.flags & _YES)

    def _go_through(self, p: _Pass, until_s: float | None) -> bool:
        """False if it was not through by `until_s`."""
        try:
            while p.round < len(self._rounds):
                up, down = self._rounds[p.round]
                if not p.sent:
                    up.send(_MESSAGE.pack(p.generation, p.number, p.flags), socket.MSG_NOSIGNAL)
                    p.sent = True
                if until_s is not None and not _is_there(down, until_s):
                    return False
                generation, number, flags = _MESSAGE.unpack(_receive(down, _MESSAGE.size))
                if generation != p.generation or (number != p.number and -1 not in (p.number, number)):
                    flags &= ~_AGREED
                p.flags = (p.flags & flags & _AGREED) | ((p.flags | flags) & _OF_ANY)
                p.round, p.sent = p.round + 1, False
        except OSError as e:
            raise RuntimeError(f"torchrelay: Connection closed in the gate of step {p.number}: {e}") from e
        if not p.flags & _AGREED:
            raise StateMismatchError(f"ranks disagree on generation and step: {p.generation} and {p.number} here")
        return True

    def close(self) -> None:
        for pair in self._rounds:
            for connection in pair:
                connection.close()


def _is_there(connection: socket.socket, until_s: float) -> bool:
    """Whether something can be read from it, which is waited for."""
    poll = select.poll()
    poll.register(connection, select.POLLIN)
    return bool(poll.poll(max(until_s - time.monotonic(), 0.0) * 1e3))


def _receive(connection: socket.socket, size_bytes: int) -> bytes:
    data = connection.recv(size_bytes, socket.MSG_WAITALL)
    while len(data) < size_bytes:
        more = connection.recv(size_bytes - len(data), socket.MSG_WAITALL)  # a signal can cut MSG_WAITALL short
        if not more:
            raise ConnectionResetError("the peer is gone")
        data += more
    return data


def distances(world_size: int) -> list[int]:
    """How far the peers of each round are away."""
    return [1 << k for k in range((world_size - 1).bit_length())]


def key_of(rank: int) -> str:
    """Where a rank says in the store how its gate is reached; nothing if it cannot be."""
    return f"gate/{rank}"


def connect(
    rank: int, world_size: int, store: Any, address: str, listener: GateListener, deadline_s: Callable[[], float]
) -> Gate:
    """Meets the peers through `store`. `deadline_s`: seconds that are left. Raises RuntimeError when one does not come."""
    ups: dict[int, socket.socket] = {}
    downs: dict[int, socket.socket] = {}
    rounds = distances(world_size)
    try:
        store.set(key_of(rank), b"%s %d %s" % (address.encode(), listener.port, listener.token.hex().encode()))
        for number, distance in enumerate(rounds):
            peer = (rank + distance) % world_size
            told = store.get(key_of(peer)).decode().split()
            if len(told) != 3:
                raise RuntimeError(f"torchrelay: rank {peer} could not connect its gate")
            host, port, token = told
            ups[number] = socket.create_connection((host, int(port)), timeout=max(deadline_s(), 0.1))
            ups[number].sendall(_HELLO.pack(bytes.fromhex(token), rank, number))
        while len(downs) < len(rounds):
            caller = listener.accept(max(deadline_s(), 0.1))
            if caller is not None and caller[1] in range(len(rounds)):
                downs[caller[1]] = caller[2]
    except (OSError, RuntimeError) as e:
        for connection in (*ups.values(), *downs.values()):
            connection.close()
        if isinstance(e, RuntimeError):
            raise
        raise RuntimeError(f"torchrelay: Connection closed while the gate was connected: {e}") from e
    finally:
        listener.close()
    return Gate([ups[k] for k in range(len(rounds))], [downs[k] for k in range(len(rounds))])
