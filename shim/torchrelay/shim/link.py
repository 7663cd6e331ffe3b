"""The shim's end of the unix socket to its agent."""

from __future__ import annotations

import os
import socket
import struct
import threading
from collections.abc import Callable

from torchrelay.protocol import wire
from torchrelay.protocol.errors import ChannelClosedError, FrameError, RefusedError
from torchrelay.protocol.messages import Ack, FaultInjected, Hello, ShimOrder, ShimReport

_CREDENTIALS = struct.Struct("3i")
"""Process, user and group: `struct ucred` of unix(7)."""


class AgentLink:
    """Sends reports from any thread; one daemon thread receives orders.

    When the agent goes away, reports are dropped and training goes on: an agent must never end a job.
    """

    def __init__(self, sock: socket.socket) -> None:
        self._socket = sock
        self._sending = threading.Lock()
        self._acknowledged = threading.Event()
        self._pid = os.getpid()
        self._gone = threading.Event()
        self.lost = False

    @classmethod
    def connect(cls, path: str, hello: Hello, timeout_s: float = 30.0) -> AgentLink:
        """Raises OSError, ChannelClosedError or RefusedError when the agent is not there or does not know this process."""
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            sock.settimeout(timeout_s)
            sock.connect(path)
            link = cls(sock)
            link.send(hello)
            answer = wire.receive(sock, wire.ORDERS)
            if not isinstance(answer, Ack):
                raise RefusedError(f"the agent answered {type(answer).__name__} to the first message")
            sock.settimeout(None)
        except BaseException:
            sock.close()
            raise
        return link

    def first_order(self, timeout_s: float) -> ShimOrder:
        """The next order, before `start`. Raises ChannelClosedError, also when the time is over, or FrameError."""
        self._socket.settimeout(timeout_s)
        order: ShimOrder = wire.receive(self._socket, wire.ORDERS)
        self._socket.settimeout(None)
        return order

    def start(self, handle: Callable[[ShimOrder], None], lost: Callable[[], None]) -> None:
        """`handle` gets each order, `lost` is called once the agent is gone; both on a thread of the link."""
        arguments = (handle, lost)
        threading.Thread(target=self._receive, args=arguments, name="torchrelay-orders", daemon=True).start()

    def _receive(self, handle: Callable[[ShimOrder], None], lost: Callable[[], None]) -> None:
        while True:
            try:
                order = wire.receive(self._socket, wire.ORDERS)
            except (ChannelClosedError, FrameError):
                self.lost = True
                self._acknowledged.set()
                self._gone.set()
                lost()
                return
            if isinstance(order, Ack):
                self._acknowledged.set()
            else:
                handle(order)

    def send(self, report: ShimReport) -> None:
        if self.lost or os.getpid() != self._pid:
            return
        data = wire.encode(report)
        with self._sending:
            try:
                self._socket.sendall(data)
            except OSError:
                self.lost = True

    def send_and_wait(self, report: FaultInjected) -> None:
        """Returns when the agent has passed the report on, or is gone."""
        self._acknowledged.clear()
        self.send(report)
        if not self.lost:
            self._acknowledged.wait(10.0)

    def wait_until_lost(self) -> None:
        """Returns when the agent has gone away."""
        self._gone.wait()

    def agent_pid(self) -> int:
        """As the kernel knows it."""
        peer = self._socket.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
        return int(_CREDENTIALS.unpack(peer)[0])

    def close_in_child(self) -> None:
        """A forked child must neither speak for its parent nor keep the socket open."""
        self.close()

    def close(self) -> None:
        """Before `start`, or where no thread of the link is."""
        self.lost = True
        self._socket.close()
