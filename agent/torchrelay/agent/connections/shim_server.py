"""The unix socket on which this node's training processes report and take orders.

Only processes of the same user get in, only with the token that the agent gave to one worker, and only one at a time for each
worker. Any other process is turned away and named once in the log; the job goes on.
"""

from __future__ import annotations

import asyncio
import dataclasses
import hmac
import logging
import os
import socket
import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torchrelay.agent.folders import private_folder
from torchrelay.protocol.errors import FrameError, RefusedError, TorchrelayError, UserError
from torchrelay.protocol.messages import Ack, Hello
from torchrelay.protocol.names import WorkerId
from torchrelay.protocol.security.tls import of_one_server
from torchrelay.protocol.transport import unix_socket, wire

log = logging.getLogger(__name__)

HELLO_LIMIT_BYTES = 64 << 10
HELLO_TIMEOUT_S = 30.0
ACCEPT_PAUSE_S = 0.5
MAX_STRANGERS = 64
"""The most connections that have not shown a token yet; more are closed at once."""
_READ_BYTES = 256 << 10
_READS_PER_TURN = 64
_CREDENTIALS = struct.Struct("3i")


@dataclass(frozen=True)
class ShimEvents:
    """The server's callbacks: a worker said Hello, a worker reported something, or its connection has ended by itself."""

    connected: Callable[[WorkerId, Hello], None]
    reported: Callable[[WorkerId, Any], None]
    gone: Callable[[WorkerId], None] = lambda worker: None


class ShimServer:
    """The socket. `shared`: only the agent and its training process mount the folder's volume, and these may be two users."""

    def __init__(self, path: Path, tokens: Mapping[WorkerId, str], events: ShimEvents, shared: bool = False) -> None:
        self._path = path
        self._tokens = dict(tokens)
        self._events = events
        self._shared = shared
        self._listener: socket.socket | None = None
        self._connected: dict[WorkerId, _Connection] = {}
        self._strangers: set[_Connection] = set()
        self._waiting: dict[WorkerId, list[bytes]] = {}
        self._named: set[str] = set()
        self._identity = "".join(of_one_server("torchrelay tensors"))
        """The key and certificate for tensors, the same for all processes of the node: they trust each other."""

    def start(self) -> None:
        """Listen on the socket. Unless `shared`, the folder must be the user's alone. Raises UserError if it cannot."""
        if not self._shared:
            private_folder(self._path.parent)
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            self._path.unlink(missing_ok=True)
            with unix_socket.reachable(str(self._path)) as path:
                listener.bind(path)
            self._path.chmod(0o666 if self._shared else 0o600)
            listener.listen(128)
        except OSError as e:
            listener.close()
            raise UserError(f"the agent cannot listen on {self._path}: {e}") from e
        listener.setblocking(False)
        asyncio.get_running_loop().add_reader(listener, self._accept)
        self._listener = listener

    def close(self) -> None:
        if self._listener is not None:
            asyncio.get_running_loop().remove_reader(self._listener)
            self._listener.close()
            self._listener = None
            self._path.unlink(missing_ok=True)
        for connection in [*self._connected.values(), *self._strangers]:
            connection.close()

    def expect(self, worker: WorkerId, token: str) -> None:
        """Expect one more worker, which will show `token`."""
        self._tokens[worker] = token

    def ended(self, worker: WorkerId) -> None:
        """Accept no process as `worker` any more."""
        self._tokens.pop(worker, None)
        self._waiting.pop(worker, None)

    def send(self, worker: WorkerId, order: Any) -> None:
        """Queue an order, also for a worker that has not connected yet. Raises FrameError if it is too large."""
        data = wire.encode(order)
        if connection := self._connected.get(worker):
            connection.send(data)
        else:
            self._waiting.setdefault(worker, []).append(data)

    def user_of(self, worker: WorkerId) -> int:
        """Return the user that the worker's process runs as; this process's user where the worker is not connected."""
        connection = self._connected.get(worker)
        return os.getuid() if connection is None else connection.user

    def drain(self, worker: WorkerId) -> None:
        """Hand on what a dead worker had still written, then close its connection and drop the orders for it."""
        if connection := self._connected.get(worker):
            connection.read(until_empty=True)
            connection.close()
        self._waiting.pop(worker, None)

    def _accept(self) -> None:
        assert self._listener is not None
        try:
            sock, _ = self._listener.accept()
        except OSError as e:
            self._refuse(f"a connection failed at once: {e}")
            self._pause()
            return
        _, uid, _ = _peer(sock)
        if not self.may_connect(uid):
            self._refuse(f"a process of user {uid} tried to connect")
        elif len(self._strangers) >= MAX_STRANGERS:
            self._refuse(f"more than {MAX_STRANGERS} connections show no token")
        else:
            sock.setblocking(False)
            self._strangers.add(_Connection(self, sock))
            return
        sock.close()

    def _pause(self) -> None:
        # There may be no file descriptor left: the waiting connection would wake the loop again and again.
        loop = asyncio.get_running_loop()
        listener = self._listener
        assert listener is not None
        loop.remove_reader(listener)
        loop.call_later(ACCEPT_PAUSE_S, lambda: listener is self._listener and loop.add_reader(listener, self._accept))

    def _refuse(self, reason: str) -> None:
        if reason not in self._named:
            self._named.add(reason)
            log.warning("refused: %s; said once", reason)

    def welcome(self, connection: _Connection, hello: Any) -> None:
        """Take in a worker by its first message.

        Raises RefusedError unless it is the Hello of a worker that the agent started and that is not connected yet.
        """
        if not isinstance(hello, Hello):
            raise RefusedError(f"{type(hello).__name__} came before Hello")
        if not self.may_connect(connection.user):  # known only since this one has connected
            raise RefusedError(f"a process of user {connection.user}")
        worker = self.identify(hello)
        if worker in self._connected:
            raise RefusedError(f"a second connection for {worker}")
        self.accepted(connection.user)
        self._strangers.discard(connection)
        self._connected[worker] = connection
        connection.worker = worker
        connection.send(wire.encode(Ack(self._identity)))
        for data in self._waiting.pop(worker, []):
            connection.send(data)
        # The token is between the two of us; the pid is the kernel's word.
        self._events.connected(worker, dataclasses.replace(hello, token="", pid=connection.pid))

    def may_connect(self, user: int) -> bool:
        """Return whether a process of `user` is listened to at all."""
        return user == os.getuid()

    def accepted(self, user: int) -> None:
        """Take note that a process of `user` has proven that it belongs here."""

    def identify(self, hello: Hello) -> WorkerId:
        """Return which worker says Hello. Raises RefusedError for a process that is none, or cannot prove it."""
        worker = WorkerId(hello.worker)
        token = self._tokens.get(worker)
        if token is None:
            raise RefusedError("a connection for a worker that this agent did not start")
        if not hmac.compare_digest(token.encode(), hello.token.encode("utf-8", "replace")):
            raise RefusedError(f"a wrong token for {worker}")
        return worker

    def report(self, worker: WorkerId, message: Any) -> None:
        """Pass on a worker's report. Raises RefusedError for a second Hello."""
        if isinstance(message, Hello):
            raise RefusedError(f"a second Hello from {worker}")
        self._events.reported(worker, message)

    def forget(self, connection: _Connection, reason: TorchrelayError | None) -> None:
        """Drop a closed connection. `reason`: the peer's mistake, if that closed it."""
        self._strangers.discard(connection)
        worker = connection.worker
        is_gone = worker is not None and self._connected.get(worker) is connection
        if worker is not None and is_gone:
            del self._connected[worker]
        if reason is not None:
            self._refuse(f"{worker or 'a process without a token'}: {reason}")
        if worker is not None and is_gone:
            self._events.gone(worker)


class _Connection:
    """One peer. Reads whenever data arrives; writes from a queue, so that a stopped process holds up no other one."""

    def __init__(self, server: ShimServer, sock: socket.socket) -> None:
        self.worker: WorkerId | None = None
        self.pid, self.user, _ = _peer(sock)
        self._server = server
        self._sock = sock
        self._closed = False
        self._received = bytearray()
        self._to_send: asyncio.Queue[bytes] = asyncio.Queue()
        self._loop = asyncio.get_running_loop()
        self._loop.add_reader(sock, self.read)
        self._sender = self._loop.create_task(self._send())
        self._deadline = self._loop.call_later(HELLO_TIMEOUT_S, self._give_up)

    def send(self, data: bytes) -> None:
        self._to_send.put_nowait(data)

    def read(self, until_empty: bool = False) -> None:
        """Read and handle the frames that have arrived.

        Without `until_empty` stop after some megabytes, so that others have their turn.
        """
        reads = 0
        while not self._closed and (until_empty or reads < _READS_PER_TURN):
            reads += 1
            try:
                data = self._sock.recv(_READ_BYTES)
            except BlockingIOError:
                return
            except OSError:
                data = b""
            if not data:
                self.close()
                return
            self._received += data
            try:
                self._take_frames()
            except TorchrelayError as e:
                self.close(e)

    def close(self, reason: TorchrelayError | None = None) -> None:
        if not self._closed:
            self._closed = True
            self._deadline.cancel()
            self._sender.cancel()
            self._loop.remove_reader(self._sock)
            self._sock.close()
            self._server.forget(self, reason)

    def _take_frames(self) -> None:
        while not self._closed and len(self._received) >= wire.HEAD_BYTES:
            length = wire.frame_length(bytes(self._received[: wire.HEAD_BYTES]))
            if self.worker is None and length > HELLO_LIMIT_BYTES:
                raise FrameError("the first frame is too large for a Hello")
            end = wire.HEAD_BYTES + length
            if len(self._received) < end:
                return
            data = bytes(self._received[wire.HEAD_BYTES : end])
            del self._received[:end]
            message = wire.decode(data, wire.REPORTS)
            if self.worker is None:
                self._server.welcome(self, message)
                self._deadline.cancel()
            else:
                self._server.report(self.worker, message)

    async def _send(self) -> None:
        while True:
            data = await self._to_send.get()
            try:
                await self._loop.sock_sendall(self._sock, data)
            except OSError as e:
                log.debug("%s: writing failed: %s", self.worker, e)
                return  # what it had written before can still be read; the end of the file closes the connection

    def _give_up(self) -> None:
        self.close(RefusedError("no Hello in time"))


def _peer(sock: socket.socket) -> tuple[int, int, int]:
    """Return pid, uid and gid of the process that connected, as the kernel knows them."""
    pid, uid, gid = _CREDENTIALS.unpack(sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size))
    return pid, uid, gid
