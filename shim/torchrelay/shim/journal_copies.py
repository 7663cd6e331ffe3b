"""Sends a copy of each journal to the agent of another node, so that a rank can be replaced when its whole node is lost."""

from __future__ import annotations

import select
import socket
import threading
from pathlib import Path

from torchrelay.protocol import journal_copy as wire
from torchrelay.protocol.journal import JournalWriter
from torchrelay.protocol.messages import CopyJournals, JournalCopyLost, JournalsCopied
from torchrelay.shim.link import AgentLink

ANSWER_TIMEOUT_S = 5.0
"""A peer that keeps training waiting for longer is given up: the rank is as safe as without a second node, and says so."""


class JournalCopies:
    """Told by the link's thread where copies go; all else happens on the training thread. Never raises."""

    def __init__(self, link: AgentLink, worker: str) -> None:
        self._link, self._worker = link, worker
        self._lock = threading.Lock()
        self._wanted: CopyJournals | None = None
        self._keeper = ""
        self._connection: socket.socket | None = None
        self._opening = b""
        self._is_open = False
        self._set_up = b""
        self._owed: int | None = None
        """The gate that the keeper has to answer for."""
        self._told = False

    def assign(self, order: CopyJournals) -> None:
        """On the link's thread. From the next boundary on, copies go there."""
        with self._lock:
            self._wanted = order
        self.let_go()

    def let_go(self) -> None:
        """On any thread: whoever waits for the keeper's answer waits no longer."""
        connection = self._connection
        if connection is not None:
            try:
                connection.shutdown(socket.SHUT_RDWR)
            except OSError:
                return  # it was not connected, or is closed already: nobody waits

    def set_up(self, payload: bytes) -> None:
        self._set_up = payload
        if self._is_open:
            self._send(wire.frame(wire.SET_UP, 0, payload))

    def boundary(self, number: int, payload: bytes) -> None:
        self._follow_order()
        if self._connection is None:
            return
        frame = wire.frame(wire.BOUNDARY, number, payload)
        if self._is_open:
            self._send(frame)
        elif self._is_connected():
            self._is_open = True
            # Waiting for room, as for an answer, ends when the keeper is gone for good.
            self._connection.settimeout(ANSWER_TIMEOUT_S)
            self._send(self._opening + wire.frame(wire.SET_UP, 0, self._set_up) + frame)

    def gate(self, number: int, payload: bytes) -> None:
        if self._is_open:
            self._owed = number
            self._send(wire.frame(wire.GATE, number, payload))

    def wait(self) -> None:
        """Returns when the keeper has the latest gate's journal, or is given up."""
        if self._owed is None or self._connection is None:
            return
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
        if wire.read_answer(data) != self._owed:
            self._drop(f"it answered for gate {wire.read_answer(data)} instead of {self._owed}")
            return
        if not self._told:
            self._told = True
            self._link.send(JournalsCopied(self._keeper, self._owed))
        self._owed = None

    def _follow_order(self) -> None:
        with self._lock:
            order, self._wanted = self._wanted, None
        if order is None:
            return
        self._close()
        if not order.host:
            return
        self._keeper = order.node
        self._opening = wire.greeting(order.token, self._worker)
        try:
            family, kind, protocol, _, address = socket.getaddrinfo(order.host, order.port, type=socket.SOCK_STREAM)[0]
            self._connection = socket.socket(family, kind, protocol)
            self._connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self._connection.setblocking(False)
            self._connection.connect_ex(address)
        except OSError as e:
            self._drop(f"it cannot be reached: {e}")

    def _is_connected(self) -> bool:
        """Looks without waiting: training does not stand still for a connection that comes about."""
        assert self._connection is not None
        if not select.select((), (self._connection,), (), 0)[1]:
            return False
        error = self._connection.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
        if error:
            self._drop(f"it cannot be reached: error {error}")
        return not error

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
        if self._connection is not None:
            self._connection.close()
        self._connection, self._is_open, self._owed, self._told = None, False, None, False


class CopiedJournal(JournalWriter):
    """A rank's journal in shared memory, and its copy elsewhere where there is one."""

    def __init__(self, folder: Path, copies: JournalCopies) -> None:
        super().__init__(folder)
        self.copies = copies

    def write_set_up(self, payload: bytes) -> None:
        super().write_set_up(payload)
        self.copies.set_up(payload)

    def write_boundary(self, boundary: int, payload: bytes) -> None:
        super().write_boundary(boundary, payload)
        self.copies.boundary(boundary, payload)

    def write_gate(self, boundary: int, payload: bytes) -> None:
        super().write_gate(boundary, payload)
        self.copies.gate(boundary, payload)
