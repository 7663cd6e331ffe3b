"""Mutual TLS over real gRPC: only who knows the secret gets in, in either direction."""

from __future__ import annotations

import asyncio
import datetime as dt
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import grpc.aio
import pytest
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec

from torchrelay.protocol import relay_pb2, relay_pb2_grpc
from torchrelay.protocol.errors import UserError
from torchrelay.protocol.security import tls
from torchrelay.protocol.security.tls import Credentials

SECRET = b"the secret of this job, 32 bytes"


class Service(relay_pb2_grpc.RelayServicer):  # type: ignore[misc]  # generated without types
    async def Watch(self, request: Any, context: Any) -> AsyncIterator[Any]:
        yield relay_pb2.JobEvent(name="first")
        await asyncio.Event().wait()

    async def Status(self, request: Any, context: Any) -> Any:
        return relay_pb2.JobStatus(run_id="right")


@asynccontextmanager
async def serving(credentials: Any) -> AsyncIterator[str]:
    server = tls.make_server()
    relay_pb2_grpc.add_RelayServicer_to_server(Service(), server)
    port = server.add_secure_port("127.0.0.1:0", credentials)
    await server.start()
    try:
        yield f"127.0.0.1:{port}"
    finally:
        await server.stop(None)


def ask(open_channel: Callable[[str], grpc.aio.Channel], server: Any = None) -> str:
    """The answer, or the name of the status."""

    async def asking() -> str:
        credentials = server or Credentials.from_secret(SECRET, "controller").server()
        async with serving(credentials) as target, open_channel(target) as channel:
            try:
                reply = await relay_pb2_grpc.RelayStub(channel).Status(relay_pb2.Empty(), timeout=20)
            except grpc.aio.AioRpcError as e:
                return str(e.code().name)
            return str(reply.run_id)

    return asyncio.run(asking())


def with_leaf(leaf: tls.Leaf) -> Callable[[str], grpc.aio.Channel]:
    credentials = grpc.ssl_channel_credentials(leaf.authority, leaf.key, leaf.certificate)
    return lambda target: grpc.aio.secure_channel(target, credentials, options=tls.CHANNEL_OPTIONS)


def test_two_processes_with_the_same_secret_understand_each_other() -> None:
    assert ask(Credentials.from_secret(SECRET, "agent").channel) == "right"


def test_another_secret_is_refused() -> None:
    assert ask(Credentials.from_secret(b"x" * 32, "stranger").channel) == "UNAVAILABLE"


def _refuse(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    writer.write(b"HTTP/1.1 400 Bad Request\r\n\r\n")
    writer.close()


@pytest.mark.parametrize(
    ("there", "stranger"), [("another secret", True), ("no TLS", True), ("nobody", False)], ids=lambda v: str(v)
)
def test_a_program_that_does_not_know_the_secret_is_told_from_nobody(there: str, stranger: bool) -> None:
    async def asking(target: str) -> grpc.aio.AioRpcError:
        async with Credentials.from_secret(SECRET, "agent").channel(target) as channel:
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await relay_pb2_grpc.RelayStub(channel).Status(relay_pb2.Empty(), timeout=20)
            return caught.value

    async def scenario() -> grpc.aio.AioRpcError:
        if there == "another secret":
            async with serving(Credentials.from_secret(b"x" * 32, "controller").server()) as target:
                return await asking(target)
        with socket.create_server(("127.0.0.1", 0)) as listener:
            target = f"127.0.0.1:{listener.getsockname()[1]}"
            if there == "nobody":
                listener.close()
                return await asking(target)
            server = await asyncio.start_server(_refuse, sock=listener)
            async with server:
                return await asking(target)

    error = asyncio.run(scenario())
    assert error.code() is grpc.StatusCode.UNAVAILABLE
    assert tls.is_of_a_stranger(error) == stranger


def test_a_client_without_a_certificate_is_refused() -> None:
    authority = Credentials.from_secret(SECRET, "").issue().authority
    credentials = grpc.ssl_channel_credentials(authority)
    assert ask(lambda t: grpc.aio.secure_channel(t, credentials, options=tls.CHANNEL_OPTIONS)) == "UNAVAILABLE"


def test_a_client_without_encryption_is_refused() -> None:
    assert ask(lambda target: grpc.aio.insecure_channel(target)) == "UNAVAILABLE"


def test_a_certificate_of_another_authority_is_refused_by_the_server() -> None:
    ours, other = Credentials.from_secret(SECRET, "").issue(), Credentials.from_secret(b"x" * 32, "").issue()
    assert ask(with_leaf(tls.Leaf(other.key, other.certificate, ours.authority, other.expires))) == "UNAVAILABLE"


def test_a_server_of_another_secret_is_refused_by_the_client() -> None:
    impostor = Credentials.from_secret(b"x" * 32, "impostor").issue()
    server = grpc.ssl_server_credentials([(impostor.key, impostor.certificate)])
    assert ask(Credentials.from_secret(SECRET, "agent").channel, server) == "UNAVAILABLE"


FASTER = 20
QUIET_S = 4.0
"""Some pings more than a server forgives; as long as 80 s with the intervals as they are."""


def test_a_stream_on_which_nothing_is_said_stays_open(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("SERVER_OPTIONS", "CHANNEL_OPTIONS"):
        intervals = ("grpc.keepalive_time_ms", "grpc.http2.min_ping_interval_without_data_ms")
        options = [(k, v // FASTER if k in intervals else v) for k, v in getattr(tls, name)]
        monkeypatch.setattr(tls, name, options)

    async def listen() -> None:
        credentials = Credentials.from_secret(SECRET, "test")
        async with serving(credentials.server()) as target, credentials.channel(target) as channel:
            watch = relay_pb2_grpc.RelayStub(channel).Watch(relay_pb2.WatchRequest())
            assert (await watch.read()).name == "first"
            with pytest.raises(asyncio.TimeoutError):
                await asyncio.wait_for(watch.read(), QUIET_S)

    asyncio.run(listen())


def test_an_expired_leaf_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tls, "LEAF_LIFETIME", dt.timedelta(hours=-1))
    expired = Credentials.from_secret(SECRET, "agent").issue()
    monkeypatch.undo()
    assert ask(with_leaf(expired)) == "UNAVAILABLE"


def test_a_server_renews_its_leaf_before_it_expires(monkeypatch: pytest.MonkeyPatch) -> None:
    issued: list[tls.Leaf] = []
    issue = Credentials.issue

    def noting(self: Credentials) -> tls.Leaf:
        issued.append(issue(self))
        return issued[-1]

    monkeypatch.setattr(Credentials, "issue", noting)
    monkeypatch.setattr(tls, "LEAF_LIFETIME", dt.timedelta(hours=-1))
    server = Credentials.from_secret(SECRET, "controller").server()
    monkeypatch.setattr(tls, "LEAF_LIFETIME", dt.timedelta(days=1))
    assert ask(Credentials.from_secret(SECRET, "agent").channel, server) == "right"
    assert len(issued) == 3  # the server's expired one, its new one, the client's


def test_the_authority_is_the_same_on_every_machine_and_another_for_another_secret() -> None:
    def public_key(secret: bytes) -> ec.EllipticCurvePublicNumbers:
        certificate = x509.load_pem_x509_certificate(Credentials.from_secret(secret, "").issue().authority)
        key = certificate.public_key()
        assert isinstance(key, ec.EllipticCurvePublicKey)
        return key.public_numbers()

    assert public_key(SECRET) == public_key(SECRET)
    assert public_key(SECRET) != public_key(SECRET[:-1] + b"!")


def test_every_leaf_has_a_key_of_its_own_and_a_short_life() -> None:
    credentials = Credentials.from_secret(SECRET, "agent n0")
    first, second = credentials.issue(), credentials.issue()
    assert first.key != second.key
    certificate = x509.load_pem_x509_certificate(first.certificate)
    assert certificate.subject.rfc4514_string() == "CN=agent n0"
    assert first.expires - dt.datetime.now(dt.timezone.utc) <= dt.timedelta(days=1)


@pytest.mark.parametrize("name", ["", "Größe", "x" * 300])
def test_any_name_makes_a_certificate(name: str) -> None:
    certificate = x509.load_pem_x509_certificate(Credentials.from_secret(SECRET, name).issue().certificate)
    assert len(certificate.subject.rfc4514_string()) > len("CN=")


def test_a_secret_that_could_be_guessed_is_refused() -> None:
    with pytest.raises(UserError, match="at least 16"):
        Credentials.from_secret(b"hunter2", "agent")


SHORT_S = 0.5


def shortened(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """Without the option nothing changes, and gRPC waits for minutes, or for ever."""
    options = [(k, int(SHORT_S * 1000) if k == name else v) for k, v in tls.SERVER_OPTIONS]
    monkeypatch.setattr(tls, "SERVER_OPTIONS", options)


def test_who_connects_and_says_nothing_is_hung_up_on(monkeypatch: pytest.MonkeyPatch) -> None:
    shortened(monkeypatch, "grpc.server_handshake_timeout_ms")

    async def silent() -> None:
        async with serving(Credentials.from_secret(SECRET, "test").server()) as target:
            host, _, port = target.partition(":")
            reader, writer = await asyncio.open_connection(host, int(port))
            assert await asyncio.wait_for(reader.read(), 20 * SHORT_S) == b""
            writer.close()

    asyncio.run(silent())


def test_who_has_shown_who_it_is_and_asks_for_nothing_is_hung_up_on(monkeypatch: pytest.MonkeyPatch) -> None:
    shortened(monkeypatch, "grpc.max_connection_idle_ms")

    async def idle() -> None:
        credentials = Credentials.from_secret(SECRET, "test")
        async with serving(credentials.server()) as target, credentials.channel(target) as channel:
            await channel.channel_ready()
            await asyncio.wait_for(channel.wait_for_state_change(grpc.ChannelConnectivity.READY), 20 * SHORT_S)

    asyncio.run(idle())
