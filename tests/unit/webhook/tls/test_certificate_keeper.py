from __future__ import annotations

import asyncio
import datetime as dt
import ssl
from pathlib import Path

import pytest
from support.certificate_store import FakeStore

from torchrelay.protocol.errors import FatalError
from torchrelay.webhook.tls.certificate_keeper import ATTEMPTS, CertificateKeeper, FolderKeeper
from torchrelay.webhook.tls.certificates import CA_CRT, LEAF_LIFETIME, TLS_CRT, TLS_KEY, renewed

NAMES = ("torchrelay-webhook.torchrelay-system.svc",)
START = dt.datetime.now(dt.timezone.utc)


class Clock:
    def __init__(self) -> None:
        self.now = START

    def __call__(self) -> dt.datetime:
        return self.now


def served(context: ssl.SSLContext) -> bytes:
    """The certificate that a client is shown, over a connection in memory."""
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    plain = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    plain.check_hostname, plain.verify_mode = False, ssl.CERT_NONE
    client, server = plain.wrap_bio(to_client, to_server), context.wrap_bio(to_server, to_client, server_side=True)
    for _ in range(4):
        for side in (client, server):
            try:
                side.do_handshake()
            except ssl.SSLWantReadError:
                continue
    shown = client.getpeercert(binary_form=True)
    assert shown is not None
    return ssl.DER_cert_to_PEM_cert(shown).encode()


def keeper(store: FakeStore, clock: Clock) -> tuple[CertificateKeeper, ssl.SSLContext]:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    return CertificateKeeper(store, NAMES, context, clock), context


def test_the_keeper_makes_stores_publishes_and_serves_a_certificate() -> None:
    store = FakeStore()
    ours, context = keeper(store, Clock())
    assert ours.not_ready
    asyncio.run(ours.refresh())
    assert ours.not_ready == ""
    assert served(context) == store.data[TLS_CRT]
    assert store.published == [store.data[CA_CRT]]


def test_a_renewed_leaf_is_served_without_a_restart() -> None:
    store, clock = FakeStore(), Clock()
    ours, context = keeper(store, clock)
    asyncio.run(ours.refresh())
    before = served(context)
    clock.now += LEAF_LIFETIME
    asyncio.run(ours.refresh())
    assert served(context) == store.data[TLS_CRT] != before


def test_what_api_servers_could_not_be_told_of_is_not_served() -> None:
    store, clock = FakeStore(), Clock()
    ours, context = keeper(store, clock)
    asyncio.run(ours.refresh())
    before = served(context)
    clock.now += LEAF_LIFETIME
    store.deaf = True
    with pytest.raises(ConnectionError):
        asyncio.run(ours.refresh())
    assert served(context) == before
    store.deaf = False
    asyncio.run(ours.refresh())
    assert served(context) == store.data[TLS_CRT] != before


def test_two_replicas_end_up_with_the_same_certificate() -> None:
    store, clock = FakeStore(), Clock()
    (one, first), (other, second) = keeper(store, clock), keeper(store, clock)
    store.rivals = [renewed({}, NAMES, START)[0]]  # somebody writes between our read and our write
    asyncio.run(one.refresh())
    asyncio.run(other.refresh())
    assert served(first) == served(second) == store.data[TLS_CRT]
    assert store.version == 1


def test_somebody_who_always_writes_garbage_is_named_in_the_end() -> None:
    store = FakeStore()
    store.rivals = [{"tls.crt": str(i).encode()} for i in range(2 * ATTEMPTS)]
    ours, _ = keeper(store, Clock())
    with pytest.raises(FatalError, match="written by others"):
        asyncio.run(ours.refresh())
    assert ours.not_ready


def test_a_caBundle_that_was_reset_is_published_again() -> None:
    store, clock = FakeStore(), Clock()
    ours, _ = keeper(store, clock)
    asyncio.run(ours.refresh())
    asyncio.run(ours.refresh())
    assert store.published == [store.data[CA_CRT]] * 2
    assert store.version == 1


def test_certificates_of_others_are_read_again_when_they_change(tmp_path: Path) -> None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    ours = FolderKeeper(tmp_path, context)
    with pytest.raises(FileNotFoundError):
        ours.refresh()
    assert ours.not_ready
    for _ in range(2):
        data, _ = renewed({}, NAMES, START)
        for name in (TLS_CRT, TLS_KEY):
            (tmp_path / name).write_bytes(data[name])
        ours.refresh()
        assert served(context) == data[TLS_CRT]
    assert ours.not_ready == ""
