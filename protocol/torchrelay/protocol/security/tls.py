"""Mutual TLS between the processes of one job, from nothing but the secret that they share.

Every process derives the same certificate authority key from the secret and issues its own short-lived leaf with it, so
no certificate travels between machines and none outlives its job. A process without the secret can make no leaf.
"""

from __future__ import annotations

import datetime as dt
from dataclasses import dataclass
from typing import Any

import grpc
import grpc.aio
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.kdf.hkdf import HKDF
from cryptography.x509.oid import ExtendedKeyUsageOID

from torchrelay.protocol.errors import UserError
from torchrelay.protocol.names import MAX_MESSAGE_BYTES
from torchrelay.protocol.security.certificates import begin_certificate, name_of, pem_of_key
from torchrelay.protocol.transport.garbled import Garbled

SERVER_NAME = "torchrelay"
"""The one name in every leaf: what counts is who issued it, not under which address the peer is reached."""
_ISSUER = "torchrelay job"
MIN_SECRET_BYTES = 16
LEAF_LIFETIME = dt.timedelta(days=1)
SERVER_LIFETIME = dt.timedelta(days=365)
"""Of a certificate that no authority stands for: as long as a process may run that has made it."""
CLOCK_SKEW = dt.timedelta(hours=6)


@dataclass(frozen=True)
class Validity:
    begins: dt.datetime
    ends: dt.datetime


OF_ITS_JOB = Validity(dt.datetime(2020, 1, 1, tzinfo=dt.timezone.utc), dt.datetime(2120, 1, 1, tzinfo=dt.timezone.utc))
"""Of an authority that every process of a job derives for itself: no clock may decide its dates, and it ends with the job."""

WINDOW_BYTES = 1 << 20
"""What a stream may have under way, enough for a journal."""
_COMMON_OPTIONS = [
    ("grpc.max_send_message_length", MAX_MESSAGE_BYTES),
    ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
    # With the probe every small message is followed by a ping, to find out how much may be under way.
    ("grpc.http2.bdp_probe", 0),
    ("grpc.http2.lookahead_bytes", WINDOW_BYTES),
]
SERVER_OPTIONS: list[tuple[str, Any]] = [
    *_COMMON_OPTIONS,
    ("grpc.keepalive_time_ms", 10_000),
    ("grpc.keepalive_timeout_ms", 10_000),
    ("grpc.http2.min_ping_interval_without_data_ms", 5_000),
    ("grpc.keepalive_permit_without_calls", 1),
    # Who connects and does nothing, before or after it has shown who it is, keeps what a connection costs.
    ("grpc.server_handshake_timeout_ms", 10_000),
    ("grpc.max_connection_idle_ms", 60_000),
    ("grpc.max_concurrent_streams", 128),
    # What is sent in one piece is kept in a buffer of each connection, and a cluster's controller has thousands of them.
    ("grpc.tsi.max_frame_size", 4096),
]
CHANNEL_OPTIONS: list[tuple[str, Any]] = [
    *_COMMON_OPTIONS,
    ("grpc.ssl_target_name_override", SERVER_NAME),
    ("grpc.keepalive_time_ms", 10_000),
    ("grpc.keepalive_timeout_ms", 10_000),
    ("grpc.http2.max_pings_without_data", 0),
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 2_000),
    ("grpc.enable_http_proxy", 0),  # the peers of a job talk directly
]

# Order of the group of P-256 (FIPS 186-4): private keys are 1 to order - 1.
_P256_ORDER = 0xFFFFFFFF00000000FFFFFFFFFFFFFFFFBCE6FAADA7179E84F3B9CAC2FC632551


def _authority_key(secret: bytes) -> ec.EllipticCurvePrivateKey:
    # 48 bytes instead of 32: the remainder is then uniform but for 2^-128.
    derived = HKDF(hashes.SHA256(), length=48, salt=None, info=b"torchrelay certificate authority v1").derive(secret)
    return ec.derive_private_key(int.from_bytes(derived, "big") % (_P256_ORDER - 1) + 1, ec.SECP256R1())


def _authority(key: ec.EllipticCurvePrivateKey, validity: Validity) -> x509.Certificate:
    # Each process signs its own copy; subject and key are all that has to be equal.
    public_key = key.public_key()
    return (
        begin_certificate(
            _ISSUER, _ISSUER, public_key, validity.begins, validity.ends, is_authority=True, serial_number=1
        )
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(public_key), critical=False)
        .sign(key, hashes.SHA256())
    )


def _issue(name: str, public_key: ec.EllipticCurvePublicKey, key: ec.EllipticCurvePrivateKey) -> x509.Certificate:
    now = dt.datetime.now(dt.timezone.utc)
    return (
        begin_certificate(name, _ISSUER, public_key, now - CLOCK_SKEW, now + LEAF_LIFETIME, is_authority=False)
        .add_extension(
            x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH]), critical=False
        )
        .add_extension(x509.SubjectAlternativeName([x509.DNSName(SERVER_NAME)]), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(key.public_key()), critical=False)
        .sign(key, hashes.SHA256())
    )


@dataclass(frozen=True)
class Leaf:
    """One process's certificate, its key and the authority that both sides trust, as PEM."""

    key: bytes
    certificate: bytes
    authority: bytes
    expires: dt.datetime


@dataclass(frozen=True)
class Credentials:
    """What one process needs to talk to the others of its job. `name` is for people who read certificates.

    `others`: authorities that are trusted beside the own one, as PEM: while one takes the place of another.
    """

    name: str
    _key: ec.EllipticCurvePrivateKey
    others: bytes = b""
    validity: Validity = OF_ITS_JOB
    """Of the authority."""

    @classmethod
    def from_secret(cls, secret: bytes, name: str, validity: Validity = OF_ITS_JOB) -> Credentials:
        """Make credentials from the job's secret. Raises UserError for a secret that could be guessed."""
        if len(secret) < MIN_SECRET_BYTES:
            raise UserError(
                f"the job's secret has {len(secret)} bytes; it needs at least {MIN_SECRET_BYTES}, at random"
            )
        return cls(name, _authority_key(secret), validity=validity)

    def issue(self) -> Leaf:
        """Issue a new leaf with a key of its own."""
        key = ec.generate_private_key(ec.SECP256R1())
        certificate = _issue(self.name, key.public_key(), self._key)
        pem = serialization.Encoding.PEM
        return Leaf(
            pem_of_key(key),
            certificate.public_bytes(pem),
            self.authority,
            certificate.not_valid_after_utc,
        )

    @property
    def authority(self) -> bytes:
        """Return what the others have to trust, as PEM: this process's own authority first."""
        return _authority(self._key, self.validity).public_bytes(serialization.Encoding.PEM) + self.others

    def sign(self, builder: x509.CertificateBuilder) -> x509.Certificate:
        """Sign a certificate for a process that does not know the secret."""
        issuer = x509.AuthorityKeyIdentifier.from_issuer_public_key(self._key.public_key())
        builder = builder.issuer_name(name_of(_ISSUER)).add_extension(issuer, critical=False)
        return builder.sign(self._key, hashes.SHA256())

    def server(self, require_client: bool = True) -> grpc.ServerCredentials:
        """Return credentials for `add_secure_port`. The server's leaf is renewed as it gets old.

        `require_client`: the peer must show a leaf of this job.
        """
        leaf = self.issue()

        def renewed() -> grpc.ServerCertificateConfiguration | None:
            nonlocal leaf
            if leaf.expires - dt.datetime.now(dt.timezone.utc) > LEAF_LIFETIME / 2:
                return None
            leaf = self.issue()
            return _server_configuration(leaf)

        return grpc.dynamic_ssl_server_credentials(
            _server_configuration(leaf),
            renewed,  # type: ignore[arg-type]  # the stubs leave out that None means "as before"
            require_client_authentication=require_client,
        )

    def channel(self, target: str) -> grpc.aio.Channel:
        """Open a channel to `HOST:PORT` with a fresh leaf. A process that lives for days reconnects with a new channel."""
        leaf = self.issue()
        credentials = grpc.ssl_channel_credentials(leaf.authority, leaf.key, leaf.certificate)
        return grpc.aio.secure_channel(target, credentials, options=CHANNEL_OPTIONS)


def of_one_server(name: str) -> tuple[str, str]:
    """Return key and certificate (PEM) of a server. No authority signs it: clients know the server by this very certificate."""
    key = ec.generate_private_key(ec.SECP256R1())
    now = dt.datetime.now(dt.timezone.utc)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name_of(name))
        .issuer_name(name_of(name))
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - CLOCK_SKEW)
        .not_valid_after(now + SERVER_LIFETIME)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(x509.SubjectAlternativeName([x509.DNSName(SERVER_NAME)]), critical=False)
        .sign(key, hashes.SHA256())
    )
    return pem_of_key(key).decode(), certificate.public_bytes(serialization.Encoding.PEM).decode()


def is_of_a_stranger(error: grpc.aio.AioRpcError) -> bool:
    """Return whether TLS found no common secret: another job's controller, or a program that speaks no TLS, answers there.

    gRPC has one status for this and for a peer that is not there, and tells them apart in words only (seen with grpcio 1.85).
    """
    return error.code() is grpc.StatusCode.UNAVAILABLE and "handshake failed" in (error.details() or "").lower()


def make_server(
    max_message_bytes: int = MAX_MESSAGE_BYTES, at_once: int | None = None, port_is_held: bool = False
) -> grpc.aio.Server:
    """Make a server with the options that the channels expect. Call `add_secure_port(address, credentials.server())` next.

    `at_once`: requests beyond that many are refused (RESOURCE_EXHAUSTED). `port_is_held`: a socket of this user that does not
    listen keeps the port for this server, with SO_REUSEPORT.
    """
    options = [(name, value) for name, value in SERVER_OPTIONS if name != "grpc.max_receive_message_length"]
    options.append(("grpc.max_receive_message_length", max_message_bytes))
    # A second controller on the same port must fail instead of sharing it.
    options.append(("grpc.so_reuseport", int(port_is_held)))
    return grpc.aio.server(interceptors=[Garbled()], options=options, maximum_concurrent_rpcs=at_once)


def _server_configuration(leaf: Leaf) -> grpc.ServerCertificateConfiguration:
    return grpc.ssl_server_certificate_configuration([(leaf.key, leaf.certificate)], leaf.authority)
