"""The commit gate: a barrier of all ranks over TCP connections of our own, dissemination style.

In round k a rank tells the one 2^k above it that it and all that it has heard of are here, and waits to be told the same by
the one 2^k below; after ceil(log2(world size)) rounds everybody knows of everybody (Hensgen, Finkel, Manber: Two Algorithms
for Barrier Synchronization, 1988). A barrier of gloo does the same, but wakes two more threads for it.
"""

from __future__ import annotations

import contextlib
import secrets
import socket
import struct
from collections.abc import Callable
from typing import Any

from torchrelay.protocol.errors import StateMismatchError

_MESSAGE = struct.Struct("<qqq")
"""Generation, number of the gate, and whether everybody heard of so far said the same."""
_HELLO = struct.Struct("<16sqq")
"""Token of the rank that is called, the caller's rank, the round."""
_HELLO_TIMEOUT_S = 5.0


class GateListener:
    """Where peers connect to; `close` may be called by another thread, to which `accept` answers with OSError."""

    def __init__(self, bind_host: str) -> None:
        self.token = secrets.token_bytes(16)
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

    def close(self) -> None:
        with contextlib.suppress(OSError):  # wakes a thread in accept, which closing alone does not
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()


class _Connection(socket.socket):
    """Closed without a ResourceWarning when the process ends: the script's own warnings are not ours to add to."""

    def __init__(self, made: socket.socket) -> None:
        super().__init__(fileno=made.detach())
        self.settimeout(None)
        self.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def __del__(self) -> None:
        self.close()


class Gate:
    """The connections of one generation; `ups[k]` and `downs[k]` are those of round k."""

    def __init__(self, ups: list[socket.socket], downs: list[socket.socket]) -> None:
        self._rounds = list(zip(map(_Connection, ups), map(_Connection, downs)))

    def wait(self, generation: int, number: int) -> None:
        """Returns when every rank has called it with the same numbers; -1 for a rank that has lost count.

        Raises RuntimeError when a connection is lost, StateMismatchError on all ranks when one said something else.
        """
        mine, agreed = (generation, number), 1
        try:
            for up, down in self._rounds:
                up.send(_MESSAGE.pack(generation, number, agreed), socket.MSG_NOSIGNAL)
                *theirs, so_far = _MESSAGE.unpack(_receive(down, _MESSAGE.size))
                if (tuple(theirs) != mine and -1 not in (number, theirs[1])) or theirs[0] != generation or not so_far:
                    agreed = 0
        except OSError as e:
            raise RuntimeError(f"torchrelay: Connection closed in the gate of step {number}: {e}") from e
        if not agreed:
            raise StateMismatchError(f"ranks disagree on generation and step: {generation} and {number} here")

    def close(self) -> None:
        for pair in self._rounds:
            for connection in pair:
                connection.close()


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


def connect(
    rank: int, world_size: int, store: Any, address: str, listener: GateListener, deadline_s: Callable[[], float]
) -> Gate:
    """Meets the peers through `store`. `deadline_s`: seconds that are left. Raises RuntimeError when one does not come."""
    store.set(f"gate/{rank}", b"%s %d %s" % (address.encode(), listener.port, listener.token.hex().encode()))
    ups: dict[int, socket.socket] = {}
    downs: dict[int, socket.socket] = {}
    rounds = distances(world_size)
    try:
        for number, distance in enumerate(rounds):
            host, port, token = store.get(f"gate/{(rank + distance) % world_size}").decode().split()
            ups[number] = socket.create_connection((host, int(port)), timeout=max(deadline_s(), 0.1))
            ups[number].sendall(_HELLO.pack(bytes.fromhex(token), rank, number))
        while len(downs) < len(rounds):
            caller = listener.accept(max(deadline_s(), 0.1))
            if caller is not None and caller[1] in range(len(rounds)):
                downs[caller[1]] = caller[2]
    except OSError as e:
        for connection in (*ups.values(), *downs.values()):
            connection.close()
        raise RuntimeError(f"torchrelay: Connection closed while the gate was connected: {e}") from e
    finally:
        listener.close()
    return Gate([ups[k] for k in range(len(rounds))], [downs[k] for k in range(len(rounds))])
