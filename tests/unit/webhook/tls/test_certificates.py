from __future__ import annotations

import datetime as dt

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.serialization import Encoding
from cryptography.x509.verification import PolicyBuilder, Store, VerificationError

from torchrelay.webhook.tls.certificates import (
    AUTHORITY_LIFETIME,
    CA_CRT,
    CA_KEY,
    CLOCK_SKEW,
    LEAF_LIFETIME,
    LEAF_RENEWED_BEFORE,
    PUBLISHED_BEFORE_USE,
    TLS_CRT,
    TLS_KEY,
    Data,
    renewed,
)

NAMES = ("torchrelay-webhook.torchrelay-system.svc", "torchrelay-webhook.torchrelay-system.svc.cluster.local")
START = dt.datetime(2026, 11, 21, 12, tzinfo=dt.timezone.utc)
DAY = dt.timedelta(days=1)


def trusted(leaf: bytes, authorities: bytes, now: dt.datetime) -> bool:
    """As an API server looks at it."""
    store = Store(x509.load_pem_x509_certificates(authorities))
    verifier = PolicyBuilder().store(store).time(now).build_server_verifier(x509.DNSName(NAMES[0]))
    try:
        verifier.verify(x509.load_pem_x509_certificate(leaf), [])
    except VerificationError:
        return False
    return True


def fresh() -> Data:
    data, reason = renewed({}, NAMES, START)
    assert reason == "there were no certificates; a new leaf"
    return data


def test_the_first_certificates_are_trusted_at_once_even_by_a_clock_that_is_behind() -> None:
    data = fresh()
    assert trusted(data[TLS_CRT], data[CA_CRT], START)
    assert trusted(data[TLS_CRT], data[CA_CRT], START - CLOCK_SKEW)
    assert not trusted(data[TLS_CRT], data[CA_CRT], START + LEAF_LIFETIME + DAY)


def test_nothing_is_written_while_nothing_is_due() -> None:
    data = fresh()
    assert renewed(data, NAMES, START + DAY) == (data, "")


def test_a_leaf_is_renewed_in_time_by_the_same_authority() -> None:
    data = fresh()
    later, reason = renewed(data, NAMES, START + LEAF_LIFETIME - LEAF_RENEWED_BEFORE + DAY)
    assert reason == "a new leaf: the old one ends soon"
    assert later[CA_CRT] == data[CA_CRT]
    assert later[TLS_KEY] != data[TLS_KEY]


def test_other_names_need_another_leaf() -> None:
    _, reason = renewed(fresh(), ("other.svc",), START)
    assert reason == "a new leaf: the old one has other names"


def test_over_three_years_no_api_server_ever_meets_a_leaf_that_it_does_not_trust() -> None:
    """API servers may hold what was published a day ago, and a replica serve the leaf of yesterday."""
    data = fresh()
    published, serving = data[CA_CRT], data[TLS_CRT]
    authorities, leaves = {data[CA_CRT]}, {data[TLS_CRT]}
    for day in range(1, 3 * 365):
        now = START + day * DAY
        data, _ = renewed(data, NAMES, now)
        assert trusted(data[TLS_CRT], published, now), "a new leaf, an API server that was told yesterday"
        assert trusted(serving, data[CA_CRT], now), "a leaf of yesterday, an API server that was told just now"
        assert len(x509.load_pem_x509_certificates(data[CA_CRT])) <= 2
        published, serving = data[CA_CRT], data[TLS_CRT]
        authorities.add(published)
        leaves.add(serving)
    assert len(leaves) > 3 * 365 // LEAF_LIFETIME.days
    assert len(authorities) >= 2 * (3 * 365 // AUTHORITY_LIFETIME.days)


def test_a_new_authority_signs_only_after_it_was_published_for_a_day() -> None:
    data = fresh()
    day = START
    while len(x509.load_pem_x509_certificates(data[CA_CRT])) == 1:
        day += DAY
        data, _ = renewed(data, NAMES, day)
    old, new = x509.load_pem_x509_certificates(data[CA_CRT])
    assert trusted(data[TLS_CRT], old.public_bytes(Encoding.PEM), day)
    # Even a leaf that is needed at once comes from the old one until then.
    needed, _ = renewed(data, ("torchrelay-webhook.torchrelay-system.svc",), day + PUBLISHED_BEFORE_USE / 2)
    assert x509.load_pem_x509_certificate(needed[TLS_CRT]).issuer == old.subject
    later, _ = renewed(data, ("torchrelay-webhook.torchrelay-system.svc",), day + PUBLISHED_BEFORE_USE)
    assert x509.load_pem_x509_certificate(later[TLS_CRT]).issuer == new.subject


def test_an_authority_stays_trusted_until_every_replica_serves_a_leaf_of_the_next() -> None:
    data, day = fresh(), START
    first = x509.load_pem_x509_certificate(data[CA_CRT])
    while x509.load_pem_x509_certificate(data[TLS_CRT]).issuer == first.subject:
        day, old_leaf = day + DAY, data[TLS_CRT]
        data, _ = renewed(data, NAMES, day)
    soon, _ = renewed(data, NAMES, day + dt.timedelta(minutes=1))
    assert trusted(old_leaf, soon[CA_CRT], day)
    later, reason = renewed(soon, NAMES, day + PUBLISHED_BEFORE_USE)
    assert reason == "an authority that signs nothing any more is dropped"
    assert not trusted(old_leaf, later[CA_CRT], day)
    assert trusted(later[TLS_CRT], later[CA_CRT], day + PUBLISHED_BEFORE_USE)


@pytest.mark.parametrize("lost", [CA_CRT, CA_KEY, TLS_CRT, TLS_KEY])
def test_what_is_missing_or_broken_is_made_anew(lost: str) -> None:
    for broken in (b"", b"garbage", None):
        data = {k: v for k, v in fresh().items() if k != lost or broken is not None}
        if broken is not None:
            data[lost] = broken
        again, reason = renewed(data, NAMES, START)
        assert "could not be read" in reason
        assert trusted(again[TLS_CRT], again[CA_CRT], START)


def test_keys_that_belong_to_other_certificates_are_noticed() -> None:
    for key in (CA_KEY, TLS_KEY):
        mixed = {**fresh(), key: fresh()[key]}
        again, reason = renewed(mixed, NAMES, START)
        assert "belongs to another certificate" in reason
        assert trusted(again[TLS_CRT], again[CA_CRT], START)


def test_a_leaf_of_another_authority_is_replaced() -> None:
    one, other = fresh(), fresh()
    mixed = {**one, TLS_CRT: other[TLS_CRT], TLS_KEY: other[TLS_KEY]}
    again, reason = renewed(mixed, NAMES, START)
    assert reason == "a new leaf: no authority vouches for the old one"
    assert trusted(again[TLS_CRT], one[CA_CRT], START)


def test_an_expired_secret_is_made_anew() -> None:
    late = START + AUTHORITY_LIFETIME + DAY
    again, reason = renewed(fresh(), NAMES, late)
    assert reason.startswith("no authority is valid")
    assert trusted(again[TLS_CRT], again[CA_CRT], late)
