"""What a receiver asks of a donor, once both know each other. An answer starts with what it answers and its size."""

from __future__ import annotations

import struct

from torchrelay.protocol.errors import FrameError
from torchrelay.shim.transfer.channel import Channel

MANIFEST, CHUNK, SEAL, DIGESTS, DONE, FINGERPRINT = range(6)
MAX_MESSAGE_BYTES = 256 << 20
"""Largest manifest or list of digests that is taken: about a million tensors."""

_REQUEST = struct.Struct("!II")
_ANSWER = struct.Struct("!IIQ")
REQUEST_BYTES = _REQUEST.size


def ask(channel: Channel, kind: int, number: int = 0) -> None:
    channel.send(_REQUEST.pack(kind, number))
    channel.sign()


def next_request(channel: Channel) -> tuple[int, int]:
    """Wait for the next request: (kind, number). Raises ChannelClosedError, and FrameError for an unknown kind."""
    channel.wait()
    kind, number = _REQUEST.unpack(channel.receive(REQUEST_BYTES))
    channel.check()
    if kind > FINGERPRINT:
        raise FrameError(f"a request of the unknown kind {kind}")
    return kind, number


def announce(channel: Channel, kind: int, number: int, size: int) -> None:
    """Send the head of an answer. `size` bytes and what belongs to the kind follow, and `Channel.sign` after these."""
    channel.send(_ANSWER.pack(kind, number, size))
    channel.sign()


def expect(channel: Channel, kind: int, number: int, size: int | None = None) -> int:
    """Read the head of the answer to `ask(kind, number)`, and return the answer's size. Raises FrameError, ChannelClosedError.

    After what follows, `Channel.check` is due.
    """
    channel.wait()
    got_kind, got_number, got_size = _ANSWER.unpack(channel.receive(_ANSWER.size))
    channel.check()
    if (got_kind, got_number) != (kind, number):
        raise FrameError(f"an answer to {got_kind}/{got_number} came in place of {kind}/{number}")
    if got_size > MAX_MESSAGE_BYTES or (size is not None and got_size != size):
        raise FrameError(f"an answer of {got_size} bytes does not fit the question")
    return int(got_size)


def content(channel: Channel, kind: int, size: int | None = None) -> bytes:
    """Return the whole answer to `ask(kind)`, for messages. Raises FrameError, ChannelClosedError."""
    found = channel.receive(expect(channel, kind, 0, size))
    channel.check()
    return found
