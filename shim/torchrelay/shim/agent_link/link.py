"""The shim's end of the unix socket to its agent."""

from __future__ import annotations

import os
import socket
import struct
import threading
import time
from collections.abc import Callable

from torchrelay.protocol.errors import ChannelClosedError, FrameError, RefusedError
from torchrelay.protocol.messages import Ack, FaultInjected, Hello, ShimOrder, ShimReport
from torchrelay.protocol.transport import unix_socket, wire
from torchrelay.protocol.transport.last_reports import LastReports

AGAIN_S = 60.0
"""For the kubelet to start the agent's container again: it waits longer each time."""
AGAIN_POLL_S = 0.2
_CREDENTIALS = struct.Struct("3i")
"""Process, user and group: `struct ucred` of unix(7)."""


class AgentLink:
    """Sends reports from any thread; one daemon thread receives orders.

    When the agent goes away, reports are dropped and training goes on: an agent must never end a job. In a pod the kubelet
    starts it again: then the link waits for it, and tells it what it has to know.
    """

    def __init__(self, sock: socket.socket) -> None:
        self._socket = sock
        self._sending = threading.Lock()
        self._acknowledged = threading.Event()
        self._pid = os.getpid()
        self._gone = threading.Event()
        self._path = ""
        self._again: Callable[[], Hello] | None = None
        self._away = False
        self._said = LastReports()
        self.lost = False
        self.identity = ""
        """Key and certificate (PEM) that the agent has made for this process."""

    @classmethod
    def connect(cls, path: str, hello: Hello, timeout_s: float = 30.0) -> AgentLink:
        """Connect to the agent.

        Raises OSError, ChannelClosedError or RefusedError when it is not there or does not know this process.
        """
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            sock.settimeout(timeout_s)
            with unix_socket.reachable(path) as short:
                sock.connect(short)
            link = cls(sock)
            link._path = path
            link.send(hello)
            answer = wire.receive(sock, wire.ORDERS)
            if not isinstance(answer, Ack):
                raise RefusedError(f"the agent answered {type(answer).__name__} to the first message")
            link.identity = answer.identity
            sock.settimeout(None)
        except BaseException:
            sock.close()
            raise
        return link

    def first_order(self, timeout_s: float) -> ShimOrder:
        """Return the next order, before `start`. Raises ChannelClosedError, also when the time is over, or FrameError."""
        self._socket.settimeout(timeout_s)
        order: ShimOrder = wire.receive(self._socket, wire.ORDERS)
        self._socket.settimeout(None)
        return order

    def start(
        self, handle: Callable[[ShimOrder], None], lost: Callable[[], None], again: Callable[[], Hello] | None = None
    ) -> None:
        """Receive orders: `handle` gets each, `lost` is called once the agent is gone for good; both on a thread of the link.

        `again()`: what to say to an agent that is started anew; without it none is waited for.
        """
        self._again = again
        arguments = (handle, lost)
        threading.Thread(target=self._receive, args=arguments, name="torchrelay-orders", daemon=True).start()

    def _receive(self, handle: Callable[[ShimOrder], None], lost: Callable[[], None]) -> None:
        while True:
            try:
                order = wire.receive(self._socket, wire.ORDERS)
            except (ChannelClosedError, FrameError):
                if self._again is not None and self._come_again(self._again):
                    continue
                self.lost = True
                self._acknowledged.set()
                self._gone.set()
                lost()
                return
            if isinstance(order, Ack):
                self._acknowledged.set()
            else:
                handle(order)

    def _come_again(self, again: Callable[[], Hello]) -> bool:
        """Return whether an agent is there within the time. What still holds of what was said is said to it once more."""
        self._away = True
        self._acknowledged.set()
        until_s = time.monotonic() + AGAIN_S
        while time.monotonic() < until_s and os.getpid() == self._pid:
            try:
                link = AgentLink.connect(self._path, again())
            except (OSError, FrameError, ChannelClosedError, RefusedError):
                time.sleep(AGAIN_POLL_S)  # nothing else tells of another container's socket
                continue
            with self._sending:
                self._socket.close()
                self._socket = link._socket
                self._away = False
                for report in self._said.all():
                    self._write(wire.encode(report))
            return True
        return False

    def send(self, report: ShimReport) -> None:
        if self.lost or os.getpid() != self._pid:
            return
        data = wire.encode(report)
        with self._sending:
            self._said.keep(report)
            if not self._away:
                self._write(data)

    def _write(self, data: bytes) -> None:
        try:
            self._socket.sendall(data)
        except OSError:
            if self._again is None:
                self.lost = True

    def send_and_wait(self, report: FaultInjected) -> None:
        """Return when the agent has passed the report on, or is gone."""
        self._acknowledged.clear()
        self.send(report)
        if not self.lost:
            self._acknowledged.wait(10.0)

    def wait_until_lost(self) -> None:
        """Return when the agent has gone away."""
        self._gone.wait()

    def agent_pid(self) -> int:
        """Return the agent's process id, as the kernel knows it."""
        peer = self._socket.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
        return int(_CREDENTIALS.unpack(peer)[0])

    def close_in_child(self) -> None:
        """Close the link in a forked child, which must neither speak for its parent nor keep the socket open."""
        self.close()

    def close(self) -> None:
        """Close the socket: before `start`, or in a process without a thread of the link."""
        self.lost = True
        self._socket.close()
