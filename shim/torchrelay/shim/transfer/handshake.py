"""Who may use a tensor channel: both sides prove that they hold the migration's token, which never travels.

donor    -> receiver   greeting: magic, version, nonce
receiver -> donor      hello: magic, version, generation, connection, what is proven, nonce, HMAC-SHA256 over all of it
donor    -> receiver   answer: code, HMAC-SHA256 that only a holder of the token can make

Between machines all that follows is authenticated, message by message, with keys that both make of the token and their nonces.
With `off` floating-point numbers are left out of that, and nothing else: other bytes may be unpickled.

With `full` all of this is said within TLS 1.3. The donor's certificate is its agent's work, and nobody vouches for it: both proofs
are over the certificate that the receiver has seen, so one of whoever sits between them makes both worthless (as
tls-server-end-point of RFC 5929). Where TLS is due, neither side speaks without.
"""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import os
import struct
from typing import NamedTuple

from torchrelay.protocol.errors import ChannelClosedError, RefusedError
from torchrelay.protocol.security import tls_contexts
from torchrelay.protocol.security.transfer_protection import FULL, INTEGRITY, OFF
from torchrelay.shim.transfer.channel import Channel

_MAGIC = b"TRTENSOR"
_VERSION = 3
_CERTIFICATE = "-----BEGIN CERTIFICATE-----"
_NONCE_BYTES = 32
_GREETING = struct.Struct(f"!8sH{_NONCE_BYTES}s")
_HELLO = struct.Struct(f"!8sHQHB{_NONCE_BYTES}s32s")
_ANSWER = struct.Struct("!B32s")
_WELCOME, _WRONG_GENERATION, _WRONG_TOKEN, _NOT_UNDERSTOOD, _UNPROTECTED = range(5)
_REASONS = {
    _WRONG_GENERATION: "it serves another generation",
    _WRONG_TOKEN: "it was opened for another token",
    _NOT_UNDERSTOOD: "it does not speak this version of the protocol",
    _UNPROTECTED: "it protects what goes to other machines, and was asked for less",
}
_NOTHING, _ALL_BUT_NUMBERS, _ALL = range(3)
"""What is proven of all that follows the introduction, the least first."""


class _Terms(NamedTuple):
    """What both sides agree on, and derive everything from."""

    token: str
    generation: int
    connection: int
    proven: int
    receivers_nonce: bytes
    donors_nonce: bytes
    certificate: bytes = b""
    """The hash of the donor's, as this side knows it; empty without TLS."""

    def secret(self, purpose: bytes) -> bytes:
        text = purpose + struct.pack("!QHB", self.generation, self.connection, self.proven)
        text += self.receivers_nonce + self.donors_nonce + self.certificate
        return hmac.digest(self.token.encode(), text, "sha256")


class Identity:
    """The donor's key and certificate in TLS, from `pem`. Raises RefusedError where it holds none."""

    def __init__(self, pem: str) -> None:
        import ssl

        try:
            self.context = tls_contexts.of_server(pem)
            der = ssl.PEM_cert_to_DER_cert(pem[pem.index(_CERTIFICATE) :])
        except (OSError, ValueError) as e:
            raise RefusedError(
                f"there is no certificate for tensors that go to another machine, which have to be encrypted: {e}"
            ) from e
        self.fingerprint = hashlib.sha256(der).digest()


def _wanted(channel: Channel, protection: str) -> int:
    """Return what has to be proven on this channel."""
    if channel.is_local():
        return _NOTHING
    return _ALL_BUT_NUMBERS if protection == OFF else _ALL


def admit(
    channel: Channel,
    generation: int,
    token: str,
    deadline: float,
    protection: str = INTEGRITY,
    identity: Identity | None = None,
) -> None:
    """Return, on the donor's side, when the peer is the right one. `identity`: for `full`.

    Raises RefusedError with the reason, after telling the peer; ChannelClosedError when it says nothing in time.
    """
    nonce = os.urandom(_NONCE_BYTES)
    later = channel.deadline
    channel.deadline = min(deadline, channel.deadline)
    wanted = _wanted(channel, protection)
    certificate = b""
    if wanted and protection == FULL:
        if identity is None:
            raise RefusedError("what goes to other machines has to be encrypted, and there is no certificate for it")
        channel.encrypt(identity.context, as_server=True)
        certificate = identity.fingerprint
    channel.send(_GREETING.pack(_MAGIC, _VERSION, nonce))
    magic, version, asked, connection, proven, theirs, proof = _HELLO.unpack(channel.receive(_HELLO.size))
    if magic != _MAGIC or version != _VERSION or proven > _ALL:
        raise _refused(channel, _NOT_UNDERSTOOD, "what it sent is no greeting of this protocol")
    terms = _Terms(token, asked, connection, proven, theirs, nonce, certificate)
    if not hmac.compare_digest(proof, terms.secret(b"receiver")):
        raise _refused(channel, _WRONG_TOKEN, "wrong token")
    if asked != generation:
        raise _refused(channel, _WRONG_GENERATION, f"generation {asked} was asked for, this is {generation}")
    if proven < wanted:
        raise _refused(channel, _UNPROTECTED, "it asked for tensors with less protection, between machines")
    channel.send(_ANSWER.pack(_WELCOME, terms.secret(b"donor")))
    if proven and not certificate:
        ours = terms.secret(b"from donor")
        receivers = terms.secret(b"from receiver")
        channel.authenticate(ours, receivers, with_numbers=proven == _ALL)
    channel.deadline = later


def _refused(channel: Channel, code: int, reason: str) -> RefusedError:
    with contextlib.suppress(ChannelClosedError):
        channel.send(_ANSWER.pack(code, bytes(32)))
    return RefusedError(reason)


def introduce(channel: Channel, generation: int, token: str, connection: int, protection: str = INTEGRITY) -> None:
    """Prove, on the receiver's side, to be the right peer, and check the donor.

    Raises RefusedError when either side turns the other away, ChannelClosedError.
    """
    wanted = _wanted(channel, protection)
    certificate = b""
    if wanted and protection == FULL:
        shown = channel.encrypt(tls_contexts.to_whoever_proves_it(), as_server=False)
        certificate = hashlib.sha256(shown).digest()
    magic, version, theirs = _GREETING.unpack(channel.receive(_GREETING.size))
    if magic != _MAGIC or version != _VERSION:
        raise RefusedError("what answers there is no donor of this version")
    nonce = os.urandom(_NONCE_BYTES)
    terms = _Terms(token, generation, connection, wanted, nonce, theirs, certificate)
    proof = terms.secret(b"receiver")
    channel.send(_HELLO.pack(_MAGIC, _VERSION, generation, connection, terms.proven, nonce, proof))
    code, answer = _ANSWER.unpack(channel.receive(_ANSWER.size))
    if code != _WELCOME:
        raise RefusedError(f"the donor refused: {_REASONS.get(code, 'for a reason that is not known here')}")
    if not hmac.compare_digest(answer, terms.secret(b"donor")):
        raise RefusedError("the donor does not hold the token of this migration")
    if terms.proven and not certificate:
        ours = terms.secret(b"from receiver")
        donors = terms.secret(b"from donor")
        channel.authenticate(ours, donors, with_numbers=terms.proven == _ALL)
