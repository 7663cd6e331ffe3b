"""Sends a copy of each journal to the agent of another node, so that a rank can be replaced when its whole node is lost."""

from __future__ import annotations

import contextlib
import select
import socket
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from torchrelay.protocol.errors import FrameError, JournalError
from torchrelay.protocol.journals import journal_copy as wire
from torchrelay.protocol.journals.journal import JournalWriter, read_journal
from torchrelay.protocol.messages import CopyJournals, JournalCopyLost, JournalsCopied, ReplicaCheck
from torchrelay.protocol.security.tls_contexts import to_one_server
from torchrelay.protocol.transport.last_reports import CHECKS_KEPT
from torchrelay.protocol.transport.wire import HEAD_BYTES, encode
from torchrelay.shim.agent_link.link import AgentLink

if TYPE_CHECKING:
    import ssl

ANSWER_TIMEOUT_S = 5.0
"""A peer that keeps training waiting for longer is given up: the rank is as safe as without a second node, and says so."""
STANDING_TIMEOUT_S = 1.0
"""The same for each wait of a rank that stands: the others wait for it."""


def _shut_down(connection: socket.socket) -> None:
    """Shut the connection down, but not by its own method, which would take TLS away from under the thread that waits."""
    socket.socket.shutdown(connection, socket.SHUT_RDWR)


class RemoteJournalCopies:
    """Told by the link's thread where copies go; all else happens on the training thread. Never raises."""

    def __init__(self, link: AgentLink, worker: str, folder: Path) -> None:
        """Begin without a keeper. `folder`: where the journals themselves are."""
        self._link = link
        self._worker = worker
        self._folder = folder
        self._lock = threading.Lock()
        self._wanted: CopyJournals | None = None
        self._keeper = ""
        self._connection: socket.socket | ssl.SSLSocket | None = None
        self._context: ssl.SSLContext | None = None
        self._opening = b""
        self._is_open = False
        self._owed: list[int] = []
        """The gates that the keeper has to answer for."""
        self._told = False
        self._checks: dict[int, ReplicaCheck] = {}
        """What the rank has told of its tensors, by boundary."""
        self._sent: Sequence[bytes] = ()
        """The parts of the boundary that the keeper got last, through this connection."""

    def assign(self, order: CopyJournals) -> None:
        """Send copies there from the next boundary on, or from `catch_up` on. For the link's thread."""
        with self._lock:
            self._wanted = order
        self.let_go()

    def let_go(self) -> None:
        """Stop the wait of a thread that waits for the keeper's answer. For any thread."""
        with self._lock:
            if self._connection is not None:
                # It may not be connected yet: then nobody waits.
                with contextlib.suppress(OSError):
                    _shut_down(self._connection)

    def set_up(self, payload: bytes) -> None:
        if self._is_open:
            self._send(wire.frame(wire.SET_UP, 0, payload))

    def boundary(self, number: int, parts: Sequence[bytes]) -> None:
        """Send a boundary's journal. `parts`: what did not change since the boundary before is the same object."""
        self._follow_order()
        if self._is_open:
            before = self._sent
            self._sent = parts
            self._send(wire.frame(wire.BOUNDARY, number, wire.in_parts(parts, before)))
        elif self._connection is not None and self._is_connected(
            0.0
        ):  # training does not stand still for a connection that comes about
            self._open(ANSWER_TIMEOUT_S)

    def catch_up(self) -> None:
        """Send a new keeper what there is, at once, where the rank stands still: this rank may be the next that is lost."""
        self._follow_order()
        if self._is_open or not self._is_connected(STANDING_TIMEOUT_S):
            return
        self._open(STANDING_TIMEOUT_S)
        self.wait()
        if self._connection is not None:
            self._connection.settimeout(ANSWER_TIMEOUT_S)

    def gate(self, number: int, payload: bytes) -> None:
        if self._is_open:
            self._owed.append(number)
            self._send(wire.frame(wire.GATE, number, payload))

    def check(self, told: ReplicaCheck) -> None:
        """Keep, and send, what the rank tells the controller, which may be lost with this machine."""
        self._checks.pop(told.boundary, None)
        self._checks[told.boundary] = told
        for number in list(self._checks)[:-CHECKS_KEPT]:
            del self._checks[number]
        if self._is_open:
            self._send(_check_frame(told))

    def wait(self) -> None:
        """Return when the keeper has the latest gate's journal, or is given up."""
        while self._owed and self._connection is not None:
            try:
                data = b""
                while len(data) < wire.ANSWER_BYTES:
                    more = self._connection.recv(wire.ANSWER_BYTES - len(data))
                    if not more:
                        self._drop("it has closed the connection")
                        return
                    data += more
            except OSError as e:
                self._drop(f"it does not answer: {e}")
                return
            self._answered(wire.read_answer(data))

    def _answered(self, number: int) -> None:
        owed = self._owed.pop(0)
        if number != owed:
            self._drop(f"it answered for gate {number} instead of {owed}")
        elif not self._owed and not self._told:
            self._told = True
            self._link.send(JournalsCopied(self._keeper, number))

    def _follow_order(self) -> None:
        if self._wanted is None:
            return
        with self._lock:
            order = self._wanted
            self._wanted = None
        if order is None:
            return
        self._close()
        if not order.host:
            return
        self._keeper = order.node
        try:
            token, certificate = wire.read_invitation(order.token)
            self._opening = wire.greeting(token, self._worker)
            self._context = to_one_server(certificate)
            family, kind, protocol, _, address = socket.getaddrinfo(order.host, order.port, type=socket.SOCK_STREAM)[0]
            self._connection = socket.socket(family, kind, protocol)
            self._connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self._connection.setblocking(False)
            self._connection.connect_ex(address)
        except (OSError, FrameError) as e:
            self._drop(f"it cannot be reached: {e}")

    def _is_connected(self, within_s: float) -> bool:
        if self._connection is None:
            return False
        poll = select.poll()
        poll.register(self._connection, select.POLLOUT)
        if not poll.poll(within_s * 1000):
            return False
        error = self._connection.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
        if error:
            self._drop(f"it cannot be reached: error {error}")
        return not error

    def _open(self, timeout_s: float) -> None:
        """Send all that shared memory has: the copies are whole as soon as that has arrived."""
        assert self._connection is not None
        # Waiting for room, as for an answer, ends when the keeper is gone for good.
        self._connection.settimeout(timeout_s)
        if not self._prove():
            return
        try:
            boundaries, gates, set_up = read_journal(self._folder)
        except (JournalError, OSError) as e:
            self._drop(f"the journals cannot be read: {e}")
            return
        self._owed = sorted(gates)
        self._is_open = True
        frames = [wire.frame(wire.SET_UP, 0, set_up)]
        self._sent = ()
        frames += [
            wire.frame(wire.BOUNDARY, number, wire.in_parts((payload,), ()))
            for number, payload in sorted(boundaries.items())
        ]
        frames += [wire.frame(wire.GATE, number, payload) for number, payload in sorted(gates.items())]
        frames += map(_check_frame, self._checks.values())
        self._send(self._opening + b"".join(frames))

    def _prove(self) -> bool:
        """Make sure that the keeper is the one that was named, and that no other process reads or changes what is sent."""
        assert self._connection is not None
        assert self._context is not None
        try:
            with self._lock:
                self._connection = self._context.wrap_socket(self._connection, do_handshake_on_connect=False)
            self._connection.do_handshake()
        except OSError as e:
            self._drop(f"it does not prove that it is the keeper: {e}")
            return False
        return True

    def _send(self, data: bytes) -> None:
        assert self._connection is not None
        try:
            self._connection.sendall(data)
        except OSError as e:
            self._drop(f"it takes nothing: {e}")

    def _drop(self, reason: str) -> None:
        self._close()
        self._link.send(JournalCopyLost(self._keeper, reason))

    def _close(self) -> None:
        with self._lock:  # `let_go` must not shut down whatever has got the descriptor by then
            if self._connection is not None:
                self._connection.close()
            self._connection = None
        self._is_open = False
        self._owed = []
        self._told = False


def _check_frame(told: ReplicaCheck) -> bytes:
    return wire.frame(wire.CHECK, told.boundary, encode(told)[HEAD_BYTES:])


class CopiedJournal(JournalWriter):
    """A rank's journal in shared memory, and its copy elsewhere where there is one."""

    def __init__(self, folder: Path, copies: RemoteJournalCopies) -> None:
        super().__init__(folder)
        self.copies = copies

    def told(self, check: ReplicaCheck) -> None:
        self.copies.check(check)

    def write_set_up(self, payload: bytes) -> None:
        super().write_set_up(payload)
        self.copies.set_up(payload)

    def write_boundary(self, boundary: int, payload: bytes, blocks: Sequence[bytes] = ()) -> None:
        super().write_boundary(boundary, payload, blocks)
        self.copies.boundary(boundary, (payload, *blocks))

    def write_gate(self, boundary: int, payload: bytes) -> None:
        super().write_gate(boundary, payload)
        self.copies.gate(boundary, payload)
