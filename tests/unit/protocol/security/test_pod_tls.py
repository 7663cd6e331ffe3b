"""Certificates of agents in pods."""

from __future__ import annotations

import datetime as dt

import pytest
from cryptography import x509
from cryptography.x509.oid import ExtendedKeyUsageOID

from torchrelay.agent.pod.enrolment import renew_in_s
from torchrelay.protocol.errors import RefusedError
from torchrelay.protocol.security import pod_tls
from torchrelay.protocol.security.pod_tls import PodIdentity, SigningRequest, identity_of, sign
from torchrelay.protocol.security.tls import Credentials

AUTHORITY = Credentials.from_secret(b"s" * 32, "controller")
POD = PodIdentity("team a/b", "train-1", "0a1b")


def test_a_certificate_says_whose_it_is() -> None:
    assert identity_of(sign(AUTHORITY, SigningRequest().pem(), POD)) == POD


def test_a_pods_certificate_comes_from_the_authority_and_is_for_clients_alone_and_for_an_hour() -> None:
    certificate = x509.load_pem_x509_certificate(sign(AUTHORITY, SigningRequest().pem(), POD))
    certificate.verify_directly_issued_by(x509.load_pem_x509_certificate(AUTHORITY.authority))
    usage = certificate.extensions.get_extension_for_class(x509.ExtendedKeyUsage).value
    assert list(usage) == [ExtendedKeyUsageOID.CLIENT_AUTH]
    assert not certificate.extensions.get_extension_for_class(x509.BasicConstraints).value.ca
    left = certificate.not_valid_after_utc - dt.datetime.now(dt.timezone.utc)
    assert dt.timedelta(minutes=50) < left <= dt.timedelta(hours=1)


def test_no_server_name_is_in_it() -> None:
    names = x509.load_pem_x509_certificate(sign(AUTHORITY, SigningRequest().pem(), POD)).extensions
    assert names.get_extension_for_class(x509.SubjectAlternativeName).value.get_values_for_type(x509.DNSName) == []


def test_a_certificate_for_another_key_is_not_taken() -> None:
    with pytest.raises(RefusedError, match="another key"):
        SigningRequest().leaf(sign(AUTHORITY, SigningRequest().pem(), POD))


def test_garbage_is_not_signed() -> None:
    with pytest.raises(RefusedError, match="no signing request"):
        sign(AUTHORITY, b"x", POD)


@pytest.mark.parametrize(
    "uri", ["", "spiffe://a/b/c", "torchrelay-pod:a/b", "torchrelay-pod:a/b/c/d", "torchrelay-pod:a//c"]
)
def test_other_names_are_no_pods(uri: str) -> None:
    with pytest.raises(RefusedError):
        PodIdentity.from_uri(uri)


@pytest.mark.parametrize("ahead_s", [-30, 30])
def test_clocks_that_differ_by_half_a_minute_do_not_matter(ahead_s: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The controller's clock is ahead, or behind, of the agent's and of everybody's who checks."""

    class Ahead(dt.datetime):
        @classmethod
        def now(cls, tz: dt.tzinfo | None = None) -> Ahead:
            return super().now(tz) + dt.timedelta(seconds=ahead_s)

    request = SigningRequest()
    with monkeypatch.context() as skewed:
        skewed.setattr(pod_tls.dt, "datetime", Ahead)
        leaf = request.leaf(sign(AUTHORITY, request.pem(), POD))
    certificate, now = x509.load_pem_x509_certificate(leaf.certificate), dt.datetime.now(dt.timezone.utc)
    assert certificate.not_valid_before_utc < now
    renewed_at = now + dt.timedelta(seconds=renew_in_s(leaf, now))
    assert renewed_at + dt.timedelta(minutes=20) < certificate.not_valid_after_utc
