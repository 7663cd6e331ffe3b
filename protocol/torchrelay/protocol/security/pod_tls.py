"""Certificates of agents in pods: signed by the controller, short-lived, and bound to the pod that they name.

Only the controller knows the secret that the authority comes from (see `tls`); an agent makes a key of its own and has it signed.
"""

from __future__ import annotations

import datetime as dt
from dataclasses import dataclass
from urllib.parse import quote, unquote

import grpc
import grpc.aio
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID

from torchrelay.protocol.errors import RefusedError
from torchrelay.protocol.security.certificates import name_of, pem_of_key
from torchrelay.protocol.security.tls import CHANNEL_OPTIONS, CLOCK_SKEW, Credentials

POD_LEAF_LIFETIME = dt.timedelta(hours=1)
_SCHEME = "torchrelay-pod:"


@dataclass(frozen=True)
class PodIdentity:
    """Which pod it is. `uid` tells two pods of the same name apart."""

    namespace: str
    pod: str
    uid: str

    @property
    def uri(self) -> str:
        return _SCHEME + "/".join(quote(part, safe="") for part in (self.namespace, self.pod, self.uid))

    @classmethod
    def from_uri(cls, uri: str) -> PodIdentity:
        """Read the identity from its URI. Raises RefusedError for any other URI."""
        parts = uri.removeprefix(_SCHEME).split("/")
        if not uri.startswith(_SCHEME) or len(parts) != 3 or not all(parts):
            raise RefusedError(f"{uri!r} names no pod")
        return cls(*map(unquote, parts))


@dataclass(frozen=True)
class PodLeaf:
    """A certificate with its key, as PEM."""

    key: bytes
    certificate: bytes
    expires: dt.datetime
    begins: dt.datetime

    def channel(self, target: str, authority: bytes) -> grpc.aio.Channel:
        credentials = grpc.ssl_channel_credentials(authority, self.key, self.certificate)
        return grpc.aio.secure_channel(target, credentials, options=CHANNEL_OPTIONS)


def anonymous_channel(target: str, authority: bytes) -> grpc.aio.Channel:
    """Open a channel for enrolment. It checks whom it talks to, and shows no certificate itself."""
    return grpc.aio.secure_channel(target, grpc.ssl_channel_credentials(authority), options=CHANNEL_OPTIONS)


class SigningRequest:
    """An agent's new key, on its way to a certificate."""

    def __init__(self) -> None:
        self._key = ec.generate_private_key(ec.SECP256R1())

    def pem(self) -> bytes:
        # The request names nobody: who asks is known from the token that goes with it.
        request = x509.CertificateSigningRequestBuilder().subject_name(x509.Name([])).sign(self._key, hashes.SHA256())
        return request.public_bytes(serialization.Encoding.PEM)

    def leaf(self, certificate: bytes) -> PodLeaf:
        """Return the certificate with its key. Raises RefusedError for a certificate that is not for this key."""
        try:
            parsed = x509.load_pem_x509_certificate(certificate)
        except ValueError as e:
            raise RefusedError("the controller's answer is no certificate") from e
        if parsed.public_key() != self._key.public_key():
            raise RefusedError("the controller's certificate is for another key")
        return PodLeaf(pem_of_key(self._key), certificate, parsed.not_valid_after_utc, parsed.not_valid_before_utc)


def sign(authority: Credentials, signing_request: bytes, identity: PodIdentity) -> bytes:
    """Return a certificate, as PEM, that a client alone can use.

    Raises RefusedError if this is no signing request, or if its own key has not signed it.
    """
    try:
        request = x509.load_pem_x509_csr(signing_request)
    except ValueError as e:
        raise RefusedError("this is no signing request") from e
    key = request.public_key()
    if not request.is_signature_valid or not isinstance(key, ec.EllipticCurvePublicKey):
        raise RefusedError("the signing request is not signed by its own key, or that is of another kind than ours")
    now = dt.datetime.now(dt.timezone.utc)
    builder = (
        x509.CertificateBuilder()
        .subject_name(name_of(identity.pod))
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - CLOCK_SKEW)
        .not_valid_after(now + POD_LEAF_LIFETIME)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.CLIENT_AUTH]), critical=True)
        .add_extension(x509.SubjectAlternativeName([x509.UniformResourceIdentifier(identity.uri)]), critical=False)
    )
    return authority.sign(builder).public_bytes(serialization.Encoding.PEM)


def identity_of(certificate: bytes) -> PodIdentity:
    """Return which pod a verified certificate (PEM) belongs to. Raises RefusedError if it is not a pod's."""
    names = x509.load_pem_x509_certificate(certificate).extensions.get_extension_for_class(x509.SubjectAlternativeName)
    uris = names.value.get_values_for_type(x509.UniformResourceIdentifier)
    if len(uris) != 1:
        raise RefusedError("the certificate names no pod")
    return PodIdentity.from_uri(uris[0])
