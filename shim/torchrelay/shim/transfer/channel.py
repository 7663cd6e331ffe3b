"""A socket on which nothing waits for ever."""

from __future__ import annotations

import contextlib
import socket
import time

from torchrelay.protocol.errors import ChannelClosedError

STALL_S = 15.0
"""A peer that is in the middle of a message and moves no byte for so long is gone."""


class Channel:
    """A connected TCP socket with a deadline (of time.monotonic). Every failure is a ChannelClosedError."""

    def __init__(self, sock: socket.socket, deadline: float) -> None:
        self._socket = sock
        self.deadline = deadline
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def _limit(self, longest_s: float | None) -> None:
        left_s = self.deadline - time.monotonic()
        if left_s <= 0:
            raise ChannelClosedError("the deadline of the tensor channel passed")
        try:
            self._socket.settimeout(left_s if longest_s is None else min(left_s, longest_s))
        except OSError as e:
            raise ChannelClosedError(f"the tensor channel was closed: {e}") from e

    def send(self, data: bytes | memoryview) -> None:
        self._limit(STALL_S)
        try:
            self._socket.sendall(data)
        except OSError as e:
            raise ChannelClosedError(f"sending tensors failed: {e}") from e

    def fill(self, view: memoryview) -> None:
        """Fills `view` from the peer, who is in the middle of a message."""
        self._limit(STALL_S)
        got, size = 0, len(view)
        try:
            while got < size:
                count = self._socket.recv_into(view[got:])
                if count == 0:
                    raise ChannelClosedError(f"the peer closed the tensor channel after {got} of {size} bytes")
                got += count
                if got < size and time.monotonic() > self.deadline:
                    raise ChannelClosedError("the deadline of the tensor channel passed")
        except OSError as e:
            raise ChannelClosedError(f"receiving tensors failed: {e}") from e

    def receive(self, size: int) -> bytes:
        """`size` bytes; for messages, not for tensors."""
        data = bytearray(size)
        self.fill(memoryview(data))
        return bytes(data)

    def wait(self, longest_s: float | None = None) -> None:
        """Returns when the peer has begun a message; by default it may take until the deadline."""
        self._limit(longest_s)
        try:
            begun = self._socket.recv(1, socket.MSG_PEEK)
        except OSError as e:
            raise ChannelClosedError(f"waiting for the peer of the tensor channel failed: {e}") from e
        if not begun:
            raise ChannelClosedError("the peer closed the tensor channel")

    def close(self) -> None:
        """Also wakes a thread that waits in this channel."""
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()


def connect(host: str, port: int, deadline: float) -> Channel:
    """Raises ChannelClosedError when nobody listens there or the deadline passes."""
    left_s = deadline - time.monotonic()
    if left_s <= 0:
        raise ChannelClosedError("the deadline of the tensor channel passed")
    try:
        return Channel(socket.create_connection((host, port), timeout=min(left_s, STALL_S)), deadline)
    except OSError as e:
        raise ChannelClosedError(f"the donor at {host} port {port} cannot be reached: {e}") from e
