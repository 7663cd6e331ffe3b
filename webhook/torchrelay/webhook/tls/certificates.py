"""The webhook's certificates: an authority that API servers are told of, and a leaf for the server. No file, no clock.

What is told has to be everywhere before it is used: a new authority is published first, and signs only a day later.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping
from dataclasses import dataclass

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from torchrelay.protocol.security.certificates import begin_certificate, pem_of_key

CA_CRT = "ca.crt"
CA_KEY = "ca.key"
TLS_CRT = "tls.crt"
TLS_KEY = "tls.key"
AUTHORITY_LIFETIME = dt.timedelta(days=730)
AUTHORITY_RENEWED_BEFORE = dt.timedelta(days=180)
LEAF_LIFETIME = dt.timedelta(days=60)
LEAF_RENEWED_BEFORE = dt.timedelta(days=20)
PUBLISHED_BEFORE_USE = dt.timedelta(days=1)
CLOCK_SKEW = dt.timedelta(hours=1)
"""Certificates are valid from this long ago: clocks differ."""

Data = dict[str, bytes]
_END_KEY = b"-----END PRIVATE KEY-----\n"


@dataclass(frozen=True)
class _Pair:
    certificate: x509.Certificate
    key: ec.EllipticCurvePrivateKey

    @property
    def made(self) -> dt.datetime:
        return self.certificate.not_valid_before_utc + CLOCK_SKEW


def renewed(data: Mapping[str, bytes], names: tuple[str, ...], now: dt.datetime) -> tuple[Data, str]:
    """Return what the Secret should hold, and why that differs from what it holds; "" if it does not differ.

    `names`: the DNS names under which API servers call the webhook.
    """
    authorities, leaf, reason = _read(data)
    reasons = [reason] if reason else []
    living = [a for a in authorities if a.certificate.not_valid_after_utc > now]
    if not living:
        living = [_new_authority(now)]
        reasons = reasons or ["no authority is valid"]
    elif living[-1].certificate.not_valid_after_utc - now < AUTHORITY_RENEWED_BEFORE:
        living.append(_new_authority(now))
        reasons.append("the authority gets old, the next one is published")
    if leaf is None or (unfit := _unfit(leaf.certificate, living, names, now)):
        reasons.append("a new leaf" if leaf is None else f"a new leaf: {unfit}")
        signer = next((a for a in reversed(living) if now - a.made >= PUBLISHED_BEFORE_USE), living[0])
        leaf = _new_leaf(signer, names, now)
    elif now - leaf.made >= PUBLISHED_BEFORE_USE and not _signed(leaf.certificate, living[0]):
        # By now no replica serves with a leaf of the oldest any more.
        living = living[1:]
        reasons.append("an authority that signs nothing any more is dropped")
    return _pem_of(living, leaf) if reasons else dict(data), "; ".join(reasons)


def _unfit(leaf: x509.Certificate, authorities: list[_Pair], names: tuple[str, ...], now: dt.datetime) -> str:
    there = leaf.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    if leaf.not_valid_after_utc - now < LEAF_RENEWED_BEFORE:
        return "the old one ends soon"
    if there.get_values_for_type(x509.DNSName) != list(names):
        return "the old one has other names"
    if not any(_signed(leaf, a) for a in authorities):
        return "no authority vouches for the old one"
    return ""


def _signed(leaf: x509.Certificate, authority: _Pair) -> bool:
    wanted = x509.AuthorityKeyIdentifier.from_issuer_public_key(authority.key.public_key())
    return leaf.extensions.get_extension_for_class(x509.AuthorityKeyIdentifier).value == wanted


def _read(data: Mapping[str, bytes]) -> tuple[list[_Pair], _Pair | None, str]:
    """Return the authorities, oldest first, and the leaf; or the reason why the stored data cannot be used."""
    if not data:
        return [], None, "there were no certificates"
    try:
        certificates = x509.load_pem_x509_certificates(data[CA_CRT])
        keys = [part + _END_KEY for part in data[CA_KEY].split(_END_KEY) if part.strip()]
        authorities = [_Pair(c, _load_key(k)) for c, k in zip(certificates, keys, strict=True)]
        leaf = _Pair(x509.load_pem_x509_certificate(data[TLS_CRT]), _load_key(data[TLS_KEY]))
        for needed in (x509.SubjectAlternativeName, x509.AuthorityKeyIdentifier):
            leaf.certificate.extensions.get_extension_for_class(needed)
    except (KeyError, ValueError, TypeError, x509.ExtensionNotFound) as e:
        return [], None, f"what was there could not be read ({type(e).__name__}: {e})"
    if any(p.certificate.public_key() != p.key.public_key() for p in [*authorities, leaf]):
        return [], None, "a key that was there belongs to another certificate"
    return sorted(authorities, key=lambda a: a.made), leaf, ""


def _load_key(pem: bytes) -> ec.EllipticCurvePrivateKey:
    key = serialization.load_pem_private_key(pem, password=None)
    if not isinstance(key, ec.EllipticCurvePrivateKey):
        raise ValueError("a key of another kind")
    return key


def _pem_of(authorities: list[_Pair], leaf: _Pair) -> Data:
    pem = serialization.Encoding.PEM
    return {
        CA_CRT: b"".join(a.certificate.public_bytes(pem) for a in authorities),
        CA_KEY: b"".join(pem_of_key(a.key) for a in authorities),
        TLS_CRT: leaf.certificate.public_bytes(pem),
        TLS_KEY: pem_of_key(leaf.key),
    }


def _new_authority(now: dt.datetime) -> _Pair:
    key = ec.generate_private_key(ec.SECP256R1())
    # Each authority has a name of its own: API servers find the right one of two by name.
    name = f"torchrelay webhook {now:%Y-%m-%d} {x509.random_serial_number() & 0xFFFFFF:06x}"
    public_key = key.public_key()
    certificate = (
        begin_certificate(name, name, public_key, now - CLOCK_SKEW, now + AUTHORITY_LIFETIME, is_authority=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(public_key), critical=False)
        .sign(key, hashes.SHA256())
    )
    return _Pair(certificate, key)


def _new_leaf(authority: _Pair, names: tuple[str, ...], now: dt.datetime) -> _Pair:
    key = ec.generate_private_key(ec.SECP256R1())
    issuer = authority.certificate.subject.get_attributes_for_oid(NameOID.COMMON_NAME)[0].value
    ends = min(now + LEAF_LIFETIME, authority.certificate.not_valid_after_utc)
    certificate = (
        begin_certificate(
            "torchrelay webhook", str(issuer), key.public_key(), now - CLOCK_SKEW, ends, is_authority=False
        )
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(x509.SubjectAlternativeName([x509.DNSName(n) for n in names]), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(authority.key.public_key()), critical=False)
        .sign(authority.key, hashes.SHA256())
    )
    return _Pair(certificate, key)
