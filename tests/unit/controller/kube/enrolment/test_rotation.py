"""The cluster's authority is exchanged while agents run: each step as an operator makes it, over real TLS ports."""

from __future__ import annotations

import asyncio
import base64
import dataclasses
import datetime as dt
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import pytest
from cryptography import x509
from support.fake_kube import FakeApi
from support.kube_cluster import SECRET, KubeCluster
from support.token_review import review_of

from torchrelay.agent.pod.enrolment import PodCredentials
from torchrelay.controller.kube.client.api import SECRETS, TOKEN_REVIEWS
from torchrelay.controller.kube.enrolment.authority import AUTHORITY_LIFETIME, open_authority, why_exchange
from torchrelay.controller.kube.enrolment.identity import Enrolment
from torchrelay.protocol import relay_pb2, relay_pb2_grpc
from torchrelay.protocol.errors import FatalError
from torchrelay.protocol.kube import kube_names as kube
from torchrelay.protocol.security.tls import Credentials, Validity, make_server

HOME = "torchrelay-system"
OLD, NEW, NEWEST = bytes(32), bytes(31) + b"\x01", bytes(31) + b"\x02"
REVIEW = review_of("train-1", "uid")


class Reviewing(FakeApi):
    async def create(self, kind: Any, manifest: dict[str, Any]) -> dict[str, Any]:
        return REVIEW if kind is TOKEN_REVIEWS else await super().create(kind, manifest)


class Relay(relay_pb2_grpc.RelayServicer):
    """Tells any agent with a certificate that it is heard."""

    async def Launch(self, request: Any, context: Any) -> relay_pb2.LaunchReply:
        return relay_pb2.LaunchReply(reason="heard")


class Cluster:
    """A Secret, a ConfigMap, and a controller that is started anew with them, behind ports that stay the same for no agent."""

    def __init__(self) -> None:
        self.api = Reviewing()
        self._servers: list[grpc.aio.Server] = []
        self.enrol, self.relay = "", ""

    async def start(self, **secrets: bytes) -> Credentials:
        """As `kubectl edit secret` and `kubectl rollout restart` do."""
        await self.stop()
        data = {name: base64.b64encode(value).decode() for name, value in secrets.items()}
        self.api.put(SECRETS, {"metadata": {"name": kube.CA_SECRET, "namespace": HOME}, "data": data})
        authority = await open_authority(self.api, HOME)  # type: ignore[arg-type]  # a stand-in
        relay, enrol = make_server(), make_server()
        relay_pb2_grpc.add_RelayServicer_to_server(Relay(), relay)
        relay_pb2_grpc.add_EnrolmentServicer_to_server(Enrolment(self.api, authority), enrol)  # type: ignore[arg-type]  # the same
        self.relay = f"127.0.0.1:{relay.add_secure_port('127.0.0.1:0', authority.server())}"
        self.enrol = f"127.0.0.1:{enrol.add_secure_port('127.0.0.1:0', authority.server(require_client=False))}"
        self._servers = [relay, enrol]
        for server in self._servers:
            await server.start()
        return authority

    @property
    def published(self) -> bytes:
        (found,) = (o for o in self.api.objects.values() if kube.CA_KEY in (o.get("data") or {}))
        return str(found["data"][kube.CA_KEY]).encode()

    async def stop(self) -> None:
        for server in self._servers:
            await server.stop(0)


class Agent:
    """Of a pod that was made when the ConfigMap said `authority`."""

    def __init__(self, cluster: Cluster, folder: Path, authority: bytes) -> None:
        (folder / "token").write_text("t")
        self._cluster, self._folder, self._env = cluster, folder, authority
        self.credentials = self._made()

    def _made(self) -> PodCredentials:
        return PodCredentials(self._cluster.enrol, self._env, self._folder / "token", self._folder / "authorities")

    def starts_again(self) -> None:
        self.credentials = self._made()

    async def renews(self) -> None:
        self.credentials._target = self._cluster.enrol
        self.credentials.leaf = await self.credentials._enrol()

    async def is_heard(self) -> bool:
        """By the controller of now, with the certificate that it has."""
        async with self.credentials.channel(self._cluster.relay) as channel:
            try:
                reply = await relay_pb2_grpc.RelayStub(channel).Launch(relay_pb2.LaunchRequest(), timeout=20)
            except grpc.aio.AioRpcError:
                return False
        return bool(reply.reason == "heard")


def in_cluster(test: Callable[[Cluster], Coroutine[Any, Any, None]]) -> None:
    async def go() -> None:
        cluster = Cluster()
        try:
            await asyncio.wait_for(test(cluster), 60)
        finally:
            await cluster.stop()

    asyncio.run(go())


def test_a_running_agent_goes_through_all_steps_and_one_that_starts_again_too(tmp_path: Path) -> None:
    async def test(cluster: Cluster) -> None:
        await cluster.start(secret=OLD)
        agent = Agent(cluster, tmp_path, cluster.published)
        await agent.renews()
        assert await agent.is_heard()
        for step in ({"secret": OLD, "next": NEW}, {"secret": NEW, "previous": OLD}, {"secret": NEW}):
            await cluster.start(**step)
            assert await agent.is_heard(), f"with the certificate from before, at {sorted(step)}"
            await agent.renews()
            assert await agent.is_heard()
            agent.starts_again()
            await agent.renews()
            assert await agent.is_heard()
        assert cluster.published.count(b"BEGIN CERTIFICATE") == 1

    in_cluster(test)


def test_a_pod_that_is_made_at_any_step_is_served_at_the_next_one(tmp_path: Path) -> None:
    async def test(cluster: Cluster) -> None:
        steps = [{"secret": OLD}, {"secret": OLD, "next": NEW}, {"secret": NEW, "previous": OLD}, {"secret": NEW}]
        for number, step in enumerate(steps[:-1]):
            await cluster.start(**step)
            folder = tmp_path / str(number)
            folder.mkdir()
            agent = Agent(cluster, folder, cluster.published)
            await agent.renews()
            await cluster.start(**steps[number + 1])
            await agent.renews()
            assert await agent.is_heard(), number

    in_cluster(test)


def test_without_the_overlap_an_agent_would_be_lost(tmp_path: Path) -> None:
    """What the steps are for."""

    async def test(cluster: Cluster) -> None:
        await cluster.start(secret=OLD)
        agent = Agent(cluster, tmp_path, cluster.published)
        await agent.renews()
        await cluster.start(secret=NEW)
        with pytest.raises(grpc.aio.AioRpcError):
            await agent.renews()
        assert not await agent.is_heard()

    in_cluster(test)


def test_where_the_secret_was_lost_new_pods_are_told_of_the_new_one() -> None:
    async def test(cluster: Cluster) -> None:
        await cluster.start(secret=OLD)
        before = cluster.published
        await cluster.start(secret=NEW)
        assert cluster.published != before

    in_cluster(test)


def test_a_secret_that_cannot_be_meant_is_named() -> None:
    async def test(cluster: Cluster) -> None:
        cluster.api.put(
            SECRETS, {"metadata": {"name": kube.CA_SECRET, "namespace": HOME}, "data": {"secret": "no base64!"}}
        )
        with pytest.raises(FatalError, match="secret in the Secret torchrelay-ca is no base64"):
            await open_authority(cluster.api, HOME)  # type: ignore[arg-type]  # a stand-in

    in_cluster(test)


def exchange(old: Credentials, new: Credentials) -> tuple[Credentials, ...]:
    """What the controller has at each step."""
    return dataclasses.replace(old, others=new.authority), dataclasses.replace(new, others=old.authority), new


@pytest.mark.timeout(300)
def test_a_job_trains_on_through_two_exchanges_and_its_ranks_can_move_and_be_lost() -> None:
    async def run() -> None:
        first, second, third = (Credentials.from_secret(s, "controller") for s in (SECRET, NEW, NEWEST))
        async with KubeCluster.open() as cluster:
            job = cluster.job("llama")
            await cluster.trains(job)
            steps = (*exchange(first, second), *exchange(second, third))
            for step in steps:
                await cluster.restart(step)
                await cluster.moves(job)  # with what agents had before
                cluster.renew()
            job.agent_of(1).die()  # and with what they have now
            await cluster.until(lambda: len(cluster.outcomes(job)) > len(steps))
            assert cluster.outcomes(job) == ["committed"] * (len(steps) + 1)

    asyncio.run(run())


def authority_of(published: bytes) -> x509.Certificate:
    return x509.load_pem_x509_certificate(published)


def test_the_authority_is_good_for_years_from_the_day_of_its_secret() -> None:
    async def test(cluster: Cluster) -> None:
        await cluster.start(secret=b"2026-03-04:" + OLD)
        ends = authority_of(cluster.published).not_valid_after_utc
        assert ends == dt.datetime(2026, 3, 4, tzinfo=dt.timezone.utc) + AUTHORITY_LIFETIME
        assert dt.timedelta(days=6 * 365) > AUTHORITY_LIFETIME

    in_cluster(test)


def test_a_secret_that_is_made_has_the_day_of_today() -> None:
    async def test(cluster: Cluster) -> None:
        today = dt.datetime(2030, 5, 6, 7, tzinfo=dt.timezone.utc)
        authority = await open_authority(cluster.api, HOME, lambda: today)  # type: ignore[arg-type]  # a stand-in
        again = await open_authority(cluster.api, HOME, lambda: today)  # type: ignore[arg-type]  # a stand-in
        assert authority.validity == again.validity
        assert authority.validity.ends == dt.datetime(2030, 5, 6, tzinfo=dt.timezone.utc) + AUTHORITY_LIFETIME

    in_cluster(test)


@pytest.mark.parametrize(("days_left", "says"), [(181, ""), (179, "exchange it before")])
def test_its_end_is_announced(days_left: int, says: str) -> None:
    now = dt.datetime(2030, 1, 1, tzinfo=dt.timezone.utc)
    said = why_exchange(Validity(now, now + dt.timedelta(days=days_left)), now)
    assert says in said
    assert bool(said) is bool(says)


def test_one_whose_time_is_over_ends_the_controller_in_words() -> None:
    async def test(cluster: Cluster) -> None:
        with pytest.raises(FatalError, match=r"ends on 2025-.*docs/security.md"):
            await cluster.start(secret=b"2020-03-04:" + OLD)
        with pytest.raises(FatalError, match="begins with no day"):
            await cluster.start(secret=b"2020-99-04:" + OLD)

    in_cluster(test)
