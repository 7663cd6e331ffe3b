"""What all our certificates have in common, whoever signs them: of a job, and of the webhook."""

from __future__ import annotations

import datetime as dt

from cryptography import x509
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

MOST_NAME_BYTES = 64
"""Of X.509."""


def begin_certificate(
    subject: str,
    issuer: str,
    public_key: ec.EllipticCurvePublicKey,
    begins: dt.datetime,
    ends: dt.datetime,
    *,
    is_authority: bool,
    serial_number: int | None = None,
) -> x509.CertificateBuilder:
    """Return a certificate to which its other extensions are to be added. `serial_number`: a random one if it is None."""
    usage = x509.KeyUsage(
        digital_signature=not is_authority,
        key_cert_sign=is_authority,
        crl_sign=is_authority,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )
    return (
        x509.CertificateBuilder()
        .subject_name(name_of(subject))
        .issuer_name(name_of(issuer))
        .public_key(public_key)
        .serial_number(x509.random_serial_number() if serial_number is None else serial_number)
        .not_valid_before(begins)
        .not_valid_after(ends)
        .add_extension(x509.BasicConstraints(ca=is_authority, path_length=0 if is_authority else None), critical=True)
        .add_extension(usage, critical=True)
    )


def pem_of_key(key: ec.EllipticCurvePrivateKey) -> bytes:
    """Return a private key as PEM, without a password."""
    return key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )


def name_of(common_name: str) -> x509.Name:
    """Return a name for a certificate: ASCII, and cut where it is too long."""
    allowed = common_name.encode("ascii", "replace")[:MOST_NAME_BYTES].decode() or "unnamed"
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, allowed)])
