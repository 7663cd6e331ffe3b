"""Connections of the commit gate: both ends prove that they hold the generation's secret, which never travels between ranks.

The listener's address and its nonce lie in the store, where whoever can reach it may read and change them. Then:

caller   -> listener   hello: generation, rank, round, whether messages are proven, nonce, HMAC-SHA256 over it and both nonces
listener -> caller     an HMAC-SHA256 that only a holder of the secret can make

Afterwards the caller alone speaks. Between machines each message ends with a proof, made with a key of this connection over the
message and its place in the row: nobody else can make one, change one, or play one again, here or on another connection.
"""

from __future__ import annotations

import contextlib
import hmac
import secrets
import socket
import struct
import threading
from typing import NamedTuple

NONCE_BYTES = 16
_DIGEST = "sha256"
_HELLO = struct.Struct(f"<qqq?{NONCE_BYTES}s32s")
"""Generation, the caller's rank, the round, whether its messages are proven, its nonce, its proof."""
_ANSWER_BYTES = 32
_PROOF_BYTES = 16
_PLACE = struct.Struct("<q")
_HELLO_TIMEOUT_S = 5.0


class Terms(NamedTuple):
    """What both ends know of a connection, and derive each proof from."""

    secret: bytes
    generation: int
    caller: int
    listener: int
    """The ranks of both ends."""
    number: int
    """The round of the barrier that it is for."""
    is_proven: bool
    callers_nonce: bytes
    listeners_nonce: bytes

    def key(self, purpose: bytes) -> bytes:
        numbers = struct.pack("<qqqq?", self.generation, self.caller, self.listener, self.number, self.is_proven)
        return hmac.digest(self.secret, purpose + numbers + self.callers_nonce + self.listeners_nonce, _DIGEST)


class Link(socket.socket):
    """One round's connection from a caller to a listener. `key`: with which messages are proven; empty: they are not.

    Closed without a ResourceWarning when the process ends: the script's own warnings are not ours to add to.
    """

    def __init__(self, made: socket.socket, key: bytes = b"") -> None:
        super().__init__(fileno=made.detach())
        self.settimeout(None)
        self.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._key = key
        self._count = 0

    def say(self, message: bytes) -> None:
        """Send a message. Raises OSError."""
        self.send(message + self._proof(message) if self._key else message, socket.MSG_NOSIGNAL)

    def hear(self, size_bytes: int) -> bytes:
        """Return the caller's next message. Raises OSError, also for one that the caller has not sent here, now."""
        if not self._key:
            return _receive(self, size_bytes)
        data = _receive(self, size_bytes + _PROOF_BYTES)
        message = data[:size_bytes]
        if not hmac.compare_digest(data[size_bytes:], self._proof(message)):
            raise ConnectionAbortedError("what came there is not what the peer has sent")
        return message

    def _proof(self, message: bytes) -> bytes:
        self._count += 1
        return hmac.digest(self._key, _PLACE.pack(self._count) + message, _DIGEST)[:_PROOF_BYTES]

    def __del__(self) -> None:
        self.close()


class GateListener:
    """Where peers of `rank` connect to in `generation`."""

    def __init__(self, bind_host: str, secret: bytes, generation: int, rank: int) -> None:
        self.nonce = secrets.token_bytes(NONCE_BYTES)
        self._secret = secret
        self._generation = generation
        self._rank = rank
        self._closing = threading.Lock()
        family, kind, protocol, _, address = socket.getaddrinfo(bind_host, 0, type=socket.SOCK_STREAM)[0]
        self._socket = socket.socket(family, kind, protocol)
        self._socket.bind(address)
        self._socket.listen(128)
        self.port = int(self._socket.getsockname()[1])

    def accept(self, timeout_s: float) -> tuple[int, Link] | None:
        """Return round and connection, or None for a caller that does not prove that it is of this generation. Raises OSError."""
        self._socket.settimeout(timeout_s)
        connection, _ = self._socket.accept()
        connection.settimeout(_HELLO_TIMEOUT_S)
        try:
            generation, caller, number, is_proven, nonce, proof = _HELLO.unpack(_receive(connection, _HELLO.size))
            terms = Terms(self._secret, generation, caller, self._rank, number, is_proven, nonce, self.nonce)
            if self._is_of_ours(terms, proof) and (is_proven or is_local(connection)):
                connection.sendall(terms.key(b"listener"))
                return number, _link(connection, terms)
        except OSError:
            pass  # a stranger that says nothing, or is gone
        connection.close()
        return None

    def _is_of_ours(self, terms: Terms, proof: bytes) -> bool:
        return hmac.compare_digest(proof, terms.key(b"caller")) and terms.generation == self._generation

    def wake(self) -> None:
        """Let `accept` raise OSError from here on. On any thread."""
        with self._closing, contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Close the socket, on the thread that accepts.

        Else the descriptor could be another file's when that thread waits again.
        """
        with self._closing:
            self._socket.close()


class GateCall:
    """A connection to a listener that has not answered yet. `peer`: the listener's rank. Raises OSError."""

    def __init__(
        self,
        address: tuple[str, int],
        listeners_nonce: bytes,
        secret: bytes,
        generation: int,
        rank: int,
        peer: int,
        number: int,
        timeout_s: float,
    ) -> None:
        self._socket = socket.create_connection(address, timeout=timeout_s)
        try:
            nonce = secrets.token_bytes(NONCE_BYTES)
            proven = not is_local(self._socket)
            self._terms = Terms(secret, generation, rank, peer, number, proven, nonce, listeners_nonce)
            self._socket.sendall(_HELLO.pack(generation, rank, number, proven, nonce, self._terms.key(b"caller")))
        except OSError:
            self._socket.close()
            raise

    def answered(self, timeout_s: float) -> Link:
        """Return the connection once its listener has proven itself. Raises OSError, also where it has not."""
        self._socket.settimeout(timeout_s)
        if not hmac.compare_digest(_receive(self._socket, _ANSWER_BYTES), self._terms.key(b"listener")):
            raise ConnectionRefusedError(f"what answers there is not rank {self._terms.listener} of this generation")
        return _link(self._socket, self._terms)

    def close(self) -> None:
        self._socket.close()


def is_local(connection: socket.socket) -> bool:
    """Return whether the peer is on this machine: both ends have one address. Raises OSError."""
    return bool(connection.getpeername()[0] == connection.getsockname()[0])


def _link(made: socket.socket, terms: Terms) -> Link:
    return Link(made, terms.key(b"messages") if terms.is_proven else b"")


def _receive(connection: socket.socket, size_bytes: int) -> bytes:
    data = connection.recv(size_bytes, socket.MSG_WAITALL)
    while len(data) < size_bytes:
        more = connection.recv(size_bytes - len(data), socket.MSG_WAITALL)  # a signal can cut MSG_WAITALL short
        if not more:
            raise ConnectionResetError("the peer is gone")
        data += more
    return data
