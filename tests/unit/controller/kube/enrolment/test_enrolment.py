"""The enrolment port answers before it knows who asks: what a stranger can cost is bounded. Over a real TLS port."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import grpc
import grpc.aio
import pytest
from support.token_review import review_of

from torchrelay.controller.kube.enrolment import enrolment_limits as limits
from torchrelay.controller.kube.enrolment.enrolment_limits import Reviews, Sources
from torchrelay.controller.kube.enrolment.identity import Enrolment
from torchrelay.protocol import relay_pb2, relay_pb2_grpc
from torchrelay.protocol.errors import RefusedError, RetryableError
from torchrelay.protocol.security.pod_tls import PodIdentity, SigningRequest, anonymous_channel
from torchrelay.protocol.security.tls import Credentials, make_server

POD = PodIdentity("team", "train-1", "uid")
GOOD = review_of("train-1", "uid")


class FakeApi:
    """Knows one token. Answers once `go_on` is set."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.go_on, self.was_asked = asyncio.Event(), asyncio.Event()
        self.go_on.set()

    async def create(self, kind: Any, body: dict[str, Any]) -> dict[str, Any]:
        self.asked.append(body["spec"]["token"])
        self.was_asked.set()
        await self.go_on.wait()
        return GOOD if body["spec"]["token"] == "good" else {"status": {"authenticated": False}}


class Port:
    """As the controller opens it."""

    def __init__(self, now: Callable[[], float]) -> None:
        self.api = FakeApi()
        authority = Credentials.from_secret(bytes(32), "controller")
        self._server = make_server(limits.MAX_MESSAGE_BYTES, limits.MAX_AT_ONCE)
        relay_pb2_grpc.add_EnrolmentServicer_to_server(Enrolment(self.api, authority, now), self._server)  # type: ignore[arg-type]  # a stand-in
        port = self._server.add_secure_port("127.0.0.1:0", authority.server(require_client=False))
        self.channel = anonymous_channel(f"127.0.0.1:{port}", authority.authority)
        self.stub = relay_pb2_grpc.EnrolmentStub(self.channel)
        self.request = SigningRequest().pem()

    async def start(self) -> None:
        await self._server.start()

    async def close(self) -> None:
        await self.channel.close()
        await self._server.stop(0)

    async def ask(self, token: str) -> grpc.StatusCode:
        try:
            await self.stub.Enrol(relay_pb2.EnrolRequest(token=token, signing_request=self.request), timeout=20)
        except grpc.aio.AioRpcError as e:
            return e.code()
        return grpc.StatusCode.OK


def at_the_port(test: Callable[[Port], Coroutine[Any, Any, None]], now: Callable[[], float] = lambda: 0.0) -> None:
    async def go() -> None:
        port = Port(now)
        await port.start()
        try:
            await asyncio.wait_for(test(port), 60)
        finally:
            await port.close()

    asyncio.run(go())


def test_a_message_that_is_no_token_is_not_even_read() -> None:
    async def test(port: Port) -> None:
        assert await port.ask("x" * (limits.MAX_MESSAGE_BYTES + 1)) == grpc.StatusCode.RESOURCE_EXHAUSTED
        assert await port.ask("x" * (limits.MAX_TOKEN_BYTES + 1)) == grpc.StatusCode.PERMISSION_DENIED
        assert port.api.asked == []
        assert await port.ask("good") == grpc.StatusCode.OK

    at_the_port(test)


def test_a_source_that_asks_without_end_is_told_to_wait_and_the_api_server_is_spared() -> None:
    async def test(port: Port) -> None:
        codes = [await port.ask(f"wrong {n}") for n in range(100)]
        assert codes.count(grpc.StatusCode.UNAVAILABLE) == 100 - limits.BURST
        assert len(port.api.asked) == limits.BURST

    at_the_port(test)


@pytest.mark.parametrize("token", ["good", "wrong"])
def test_the_same_token_is_reviewed_once(token: str) -> None:
    async def test(port: Port) -> None:
        port.api.go_on.clear()
        asking = [asyncio.create_task(port.ask(token)) for _ in range(10)]
        await port.api.was_asked.wait()
        port.api.go_on.set()
        codes = {await one for one in asking} | {await port.ask(token)}
        assert codes == {grpc.StatusCode.OK if token == "good" else grpc.StatusCode.PERMISSION_DENIED}
        assert port.api.asked == [token]

    at_the_port(test)


def test_requests_beyond_those_under_way_are_turned_away(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "BURST", 1000.0)

    async def test(port: Port) -> None:
        port.api.go_on.clear()
        asking = [asyncio.create_task(port.ask(f"wrong {n}")) for n in range(limits.MAX_AT_ONCE + 20)]
        done, waiting = await asyncio.wait(asking, return_when=asyncio.FIRST_COMPLETED)
        while len(done) < 20:
            more, waiting = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
            done |= more
        assert {one.result() for one in done} == {grpc.StatusCode.RESOURCE_EXHAUSTED}
        assert len(port.api.asked) <= limits.MAX_AT_ONCE
        port.api.go_on.set()
        assert {await one for one in waiting} == {grpc.StatusCode.PERMISSION_DENIED}

    at_the_port(test)


class Clock:
    def __init__(self) -> None:
        self.now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


def test_a_source_is_served_again_as_time_goes_by_and_another_one_all_the_time() -> None:
    clock = Clock()
    sources = Sources(clock)
    for _ in range(int(limits.BURST)):
        sources.take("10.0.0.1")
    with pytest.raises(RetryableError, match=r"10\.0\.0\.1"):
        sources.take("10.0.0.1")
    sources.take("10.0.0.2")
    clock.now_s += 1.0 / limits.PER_S
    sources.take("10.0.0.1")
    with pytest.raises(RetryableError):
        sources.take("10.0.0.1")


def test_what_is_remembered_is_bounded_and_grows_old(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "MAX_SOURCES", 3)
    monkeypatch.setattr(limits, "MAX_REVIEWS", 3)
    clock = Clock()
    sources, reviews = Sources(clock), Reviews(clock)
    for n in range(10):
        sources.take(f"10.0.0.{n}")
        reviews.keep(f"token {n}", RefusedError("no") if n % 2 else POD)
    assert len(sources._buckets) == len(reviews._known) == 3
    assert reviews.known("token 8") == POD
    assert reviews.known("token 0") is None
    clock.now_s += limits.REVIEW_S
    assert reviews.known("token 8") is None
    assert not any("token" in repr(key) for key in reviews._known)


@pytest.mark.parametrize(
    ("peer", "source"), [("ipv4:10.0.0.1:4711", "ipv4:10.0.0.1"), ("ipv6:[fd00::1]:4711", "ipv6:[fd00::1]"), ("", "")]
)
def test_a_source_is_an_address_whatever_the_port(peer: str, source: str) -> None:
    assert limits.source_of(peer) == source
