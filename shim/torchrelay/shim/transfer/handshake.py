"""Who may use a tensor channel: both sides prove that they hold the migration's token, which never travels.

donor    -> receiver   greeting: magic, version, nonce
receiver -> donor      hello: magic, version, generation, connection, nonce, HMAC-SHA256 over all of it
donor    -> receiver   answer: code, HMAC-SHA256 that only a holder of the token can make
"""

from __future__ import annotations

import contextlib
import hmac
import os
import struct

from torchrelay.protocol.errors import ChannelClosedError, RefusedError
from torchrelay.shim.transfer.channel import Channel

_MAGIC = b"TRTENSOR"
_VERSION = 1
_NONCE_BYTES = 32
_GREETING = struct.Struct(f"!8sH{_NONCE_BYTES}s")
_HELLO = struct.Struct(f"!8sHQH{_NONCE_BYTES}s32s")
_ANSWER = struct.Struct("!B32s")
_WELCOME, _WRONG_GENERATION, _WRONG_TOKEN, _NOT_UNDERSTOOD = range(4)
_REASONS = {
    _WRONG_GENERATION: "it serves another generation",
    _WRONG_TOKEN: "it was opened for another token",
    _NOT_UNDERSTOOD: "it does not speak this version of the protocol",
}


def _proof(token: str, role: bytes, ours: bytes, theirs: bytes, generation: int, connection: int) -> bytes:
    text = role + ours + theirs + struct.pack("!QH", generation, connection)
    return hmac.digest(token.encode(), text, "sha256")


def admit(channel: Channel, generation: int, token: str, deadline: float) -> None:
    """The donor's side: returns when the peer is the right one.

    Raises RefusedError with the reason, after telling the peer; ChannelClosedError when it says nothing in time.
    """
    nonce = os.urandom(_NONCE_BYTES)
    later, channel.deadline = channel.deadline, min(deadline, channel.deadline)
    channel.send(_GREETING.pack(_MAGIC, _VERSION, nonce))
    magic, version, asked, connection, theirs, proof = _HELLO.unpack(channel.receive(_HELLO.size))
    if magic != _MAGIC or version != _VERSION:
        raise _refused(channel, _NOT_UNDERSTOOD, "what it sent is no greeting of this protocol")
    if not hmac.compare_digest(proof, _proof(token, b"receiver", theirs, nonce, asked, connection)):
        raise _refused(channel, _WRONG_TOKEN, "wrong token")
    if asked != generation:
        raise _refused(channel, _WRONG_GENERATION, f"generation {asked} was asked for, this is {generation}")
    channel.send(_ANSWER.pack(_WELCOME, _proof(token, b"donor", nonce, theirs, generation, connection)))
    channel.deadline = later


def _refused(channel: Channel, code: int, reason: str) -> RefusedError:
    with contextlib.suppress(ChannelClosedError):
        channel.send(_ANSWER.pack(code, bytes(32)))
    return RefusedError(reason)


def introduce(channel: Channel, generation: int, token: str, connection: int) -> None:
    """The receiver's side. Raises RefusedError when either side turns the other away, ChannelClosedError."""
    magic, version, theirs = _GREETING.unpack(channel.receive(_GREETING.size))
    if magic != _MAGIC or version != _VERSION:
        raise RefusedError("what answers there is no donor of this version")
    nonce = os.urandom(_NONCE_BYTES)
    proof = _proof(token, b"receiver", nonce, theirs, generation, connection)
    channel.send(_HELLO.pack(_MAGIC, _VERSION, generation, connection, nonce, proof))
    code, answer = _ANSWER.unpack(channel.receive(_ANSWER.size))
    if code != _WELCOME:
        raise RefusedError(f"the donor refused: {_REASONS.get(code, 'for a reason that is not known here')}")
    if not hmac.compare_digest(answer, _proof(token, b"donor", theirs, nonce, generation, connection)):
        raise RefusedError("the donor does not hold the token of this migration")
