"""A socket on which nothing waits for ever."""

from __future__ import annotations

import contextlib
import hmac
import socket
import struct
import threading
import time
from typing import TYPE_CHECKING

from torchrelay.protocol.errors import ChannelClosedError, RefusedError

if TYPE_CHECKING:
    import ssl

STALL_S = 15.0
"""A peer that is in the middle of a message and moves no byte for so long is gone."""


_TIMEVAL = struct.Struct("ll")


def _reason(error: OSError) -> str:
    return "nothing moved in time" if isinstance(error, (BlockingIOError, TimeoutError)) else str(error)


class Channel:
    """A connected TCP socket with a deadline (of time.monotonic). Every failure is a ChannelClosedError.

    The socket blocks, and the kernel minds the time: with Python's own time-outs each call would wait and move what
    there is many times over, and fight with the other threads for the interpreter lock each time. Only TLS needs them.
    """

    def __init__(self, sock: socket.socket, deadline: float) -> None:
        self._socket = sock
        self._closing = threading.Lock()
        self._sent: hmac.HMAC | None = None
        self._received: hmac.HMAC | None = None
        """Over all bytes of one direction since `authenticate`; None: nothing is added to what is sent."""
        self._proves_numbers = True
        self._encrypted = False
        self._ahead = b""
        """What `wait` has read of an encrypted message to see that it has begun."""
        self.deadline = deadline
        self.patience_s: float | None = None
        """How long the peer may say nothing; None: until the deadline, and STALL_S in the middle of a message."""
        sock.settimeout(None)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def is_local(self) -> bool:
        """Return whether the peer is on this machine: both ends have one address. Raises ChannelClosedError."""
        try:
            return bool(self._socket.getpeername()[0] == self._socket.getsockname()[0])
        except OSError as e:
            raise ChannelClosedError(f"the peer of the tensor channel is gone: {e}") from e

    def encrypt(self, context: ssl.SSLContext, *, as_server: bool) -> bytes:
        """Speak TLS from here on. Return the certificate (DER) that the peer has shown; empty: none.

        Raises RefusedError where the peer does not speak TLS, ChannelClosedError.
        """
        import ssl

        with self._closing:
            try:
                self._socket = sock = context.wrap_socket(
                    self._socket, server_side=as_server, do_handshake_on_connect=False, suppress_ragged_eofs=False
                )
            except OSError as e:
                raise ChannelClosedError(f"the peer of the tensor channel is gone: {_reason(e)}") from e
        self._encrypted = True
        try:
            self._limit(socket.SO_RCVTIMEO, STALL_S)
            sock.do_handshake()
        except (ssl.SSLEOFError, ssl.SSLZeroReturnError) as e:
            raise ChannelClosedError("the peer closed the tensor channel before it was encrypted") from e
        except ssl.SSLError as e:
            raise RefusedError(
                f"no TLS with the peer ({e.reason}): --transfer-encryption has to be the same on all machines"
            ) from e
        except OSError as e:
            raise ChannelClosedError(f"encrypting the tensor channel failed: {_reason(e)}") from e
        return sock.getpeercert(binary_form=True) or b""

    def authenticate(self, ours: bytes, theirs: bytes, *, with_numbers: bool = True) -> None:
        """Let `sign` and `check` prove, from here on, who has sent all bytes before them, with a key for each direction.

        `with_numbers`: also those of `send_numbers` and `fill_numbers`.
        """
        self._sent = hmac.new(ours, digestmod="sha256")
        self._received = hmac.new(theirs, digestmod="sha256")
        self._proves_numbers = with_numbers

    def sign(self) -> None:
        """Send a proof, at the end of each message."""
        if self._sent is not None:
            self._send(self._sent.copy().digest())

    def check(self) -> None:
        """Check the peer's proof, at the end of each of its messages, before anything of it is believed.

        Raises ChannelClosedError.
        """
        if self._received is None:
            return
        proof = bytearray(self._received.digest_size)
        self._fill(memoryview(proof))
        if not hmac.compare_digest(self._received.copy().digest(), proof):
            raise ChannelClosedError("what came on the tensor channel is not what the peer has sent")

    def _limit(self, option: int, longest_s: float | None) -> None:
        """Limit the next call's time. `option`: SO_RCVTIMEO or SO_SNDTIMEO.

        Raises ChannelClosedError when the deadline has passed.
        """
        left_s = self.deadline - time.monotonic()
        if left_s <= 0:
            raise ChannelClosedError("the deadline of the tensor channel passed")
        # The kernel takes 0 for "for ever".
        limit_s = max(left_s if longest_s is None else min(left_s, longest_s), 0.001)
        if self._encrypted:
            self._socket.settimeout(limit_s)  # Python repeats what the kernel ends, so it has to mind the time itself
            return
        seconds = int(limit_s)
        self._socket.setsockopt(socket.SOL_SOCKET, option, _TIMEVAL.pack(seconds, int((limit_s - seconds) * 1e6)))

    def send(self, data: bytes | memoryview) -> None:
        if self._sent is not None:
            self._sent.update(data)
        self._send(data)

    def send_numbers(self, data: bytes | memoryview) -> None:
        """Send as `send` does, but perhaps unproven: the peer takes these bytes for nothing but floating-point numbers."""
        if self._proves_numbers:
            self.send(data)
        else:
            self._send(data)

    def _send(self, data: bytes | memoryview) -> None:
        view = memoryview(data)
        sent = 0
        try:
            while sent < len(view):
                self._limit(socket.SO_SNDTIMEO, STALL_S)
                sent += self._socket.send(view[sent:])
        except OSError as e:
            raise ChannelClosedError(f"sending on the tensor channel failed: {_reason(e)}") from e

    def fill(self, view: memoryview) -> None:
        """Fill `view` from the peer, which is in the middle of a message."""
        self._fill(view)
        if self._received is not None:
            self._received.update(view)

    def fill_numbers(self, view: memoryview) -> None:
        """Fill `view` as `fill` does, with what the peer sends by `send_numbers`."""
        if self._proves_numbers:
            self.fill(view)
        else:
            self._fill(view)

    def _fill(self, view: memoryview) -> None:
        got = min(len(view), len(self._ahead))
        if got:
            view[:got] = self._ahead[:got]
            self._ahead = self._ahead[got:]
        try:
            while got < len(view):
                self._limit(socket.SO_RCVTIMEO, self.patience_s or STALL_S)
                count = self._socket.recv_into(view[got:])
                if count == 0:
                    raise ChannelClosedError(f"the peer closed the tensor channel after {got} of {len(view)} bytes")
                got += count
        except OSError as e:
            raise ChannelClosedError(f"receiving on the tensor channel failed: {_reason(e)}") from e

    def receive(self, size: int) -> bytes:
        """Return the next `size` bytes; for messages, not for tensors."""
        data = bytearray(size)
        self.fill(memoryview(data))
        return bytes(data)

    def wait(self) -> None:
        """Return when the peer has begun a message. Raises ChannelClosedError."""
        try:
            self._limit(socket.SO_RCVTIMEO, self.patience_s)
            if self._encrypted:
                begun = self._ahead = self._ahead or self._socket.recv(1)
            else:
                begun = self._socket.recv(1, socket.MSG_PEEK)
        except OSError as e:
            raise ChannelClosedError(f"waiting for the peer of the tensor channel failed: {_reason(e)}") from e
        if not begun:
            raise ChannelClosedError("the peer closed the tensor channel")

    def wake(self) -> None:
        """End the connection. A thread that waits in this channel finds that out. For any thread.

        Only the thread that waits may close: a descriptor that is closed under a waiting thread can be another file's by the time
        that the thread looks at it again.
        """
        with self._closing, contextlib.suppress(OSError):
            # Its own method would take TLS away from under the thread that waits.
            socket.socket.shutdown(self._socket, socket.SHUT_RDWR)

    def close(self) -> None:
        """Close the socket. To be called when no other thread is in this channel."""
        self.wake()
        with self._closing:
            self._socket.close()


def connect(host: str, port: int, deadline: float) -> Channel:
    """Connect to a donor. Raises ChannelClosedError when no process listens there or the deadline passes."""
    left_s = deadline - time.monotonic()
    if left_s <= 0:
        raise ChannelClosedError("the deadline of the tensor channel passed")
    try:
        return Channel(socket.create_connection((host, port), timeout=min(left_s, STALL_S)), deadline)
    except OSError as e:
        raise ChannelClosedError(f"the donor at {host} port {port} cannot be reached: {e}") from e
