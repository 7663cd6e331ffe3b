"""An agent that comes before the mirror has its pod, and one whose pod is deleted."""

from __future__ import annotations

import asyncio
import dataclasses
import logging
from typing import Any

import grpc
import grpc.aio
import pytest
from support.kube_cluster import KubeCluster, training_pod

from torchrelay.controller.kube.cluster.pods import JobKey, Pod, read_pod
from torchrelay.controller.kube.jobs.ledger import MOST_RANKS_OF_A_POD, Ledger
from torchrelay.protocol import messages as msg
from torchrelay.protocol import relay_pb2, relay_pb2_grpc
from torchrelay.protocol.errors import RefusedError, RetryableError
from torchrelay.protocol.security.pod_tls import PodIdentity
from torchrelay.protocol.transport.convert import wrap

KEY = JobKey("team", "llama")


def a_pod() -> Pod:
    manifest = training_pod(KEY, 0, 2)
    manifest["metadata"] |= {"uid": "uid-of-its-own", "namespace": "team"}
    found = read_pod(manifest)
    assert found is not None
    return found


POD = a_pod()
IDENTITY = PodIdentity("team", POD.name, POD.uid)


def hello(size: str = "2") -> msg.AgentHello:
    launch = {"RANK": "0", "WORLD_SIZE": size, "MASTER_ADDR": "a", "MASTER_PORT": "29500"}
    return msg.AgentHello(POD.agent, -1, "10.0.0.1", (msg.WorkerInfo(f"{POD.agent}.1", 0, 1, launch),))


class Api:
    """Has the pod until it is deleted; the mirror may hear of either later. `held`: an answer that is on its way."""

    def __init__(self) -> None:
        self.has, self.asked = True, 0
        self.answers = asyncio.Event()
        self.answers.set()
        self.ledger = Ledger(self._find, self._remember)

    async def _find(self, identity: PodIdentity) -> Pod | None:
        self.asked += 1
        found = POD if self.has else None
        await self.answers.wait()
        return found

    async def _remember(self, key: JobKey) -> Any:
        raise AssertionError("nobody has begun this job")


def test_an_agent_that_comes_first_is_served_and_its_pod_is_known_once_the_mirror_has_it() -> None:
    async def run() -> None:
        api = Api()
        served = await api.ledger.run_for(IDENTITY, hello())
        assert served.key == KEY
        assert api.ledger.pods_of(KEY) == []
        api.ledger.pods[POD.uid] = POD
        assert await api.ledger.run_for(IDENTITY, hello()) is served
        assert api.asked == 1

    asyncio.run(run())


def test_a_claim_of_more_ranks_than_its_pods_could_have_waits_for_the_others() -> None:
    async def run() -> None:
        api = Api()
        api.ledger.pods[POD.uid] = POD
        size = str(MOST_RANKS_OF_A_POD + 1)
        for _ in range(2):
            with pytest.raises(RetryableError, match=f"claims {size} ranks, and 1 pods of its job are there"):
                await api.ledger.run_for(IDENTITY, hello(size))
            over = dataclasses.replace(POD, uid="another", phase="Failed")
            api.ledger.pods["another"] = over
        assert not api.ledger.runs
        api.ledger.pods["another"] = dataclasses.replace(over, phase="Running")
        assert (await api.ledger.run_for(IDENTITY, hello(size))).core.job.world_size == int(size)

    asyncio.run(run())


@pytest.mark.parametrize("size", ["131073", "0", "9" * 5000])
def test_a_claim_that_no_job_can_have_is_refused(size: str) -> None:
    async def run() -> None:
        with pytest.raises(RefusedError, match="ranks is none: at most 131072 are looked after"):
            await Api().ledger.run_for(IDENTITY, hello(size))

    asyncio.run(run())


def test_a_pod_that_is_deleted_while_it_is_looked_up_is_not_there_for_ever() -> None:
    async def run() -> None:
        api = Api()
        api.answers.clear()
        looking = asyncio.ensure_future(api.ledger.run_for(IDENTITY, hello()))
        await asyncio.sleep(0)
        assert api.asked == 1
        api.ledger.pods[POD.uid] = POD
        del api.ledger.pods[POD.uid]
        api.answers.set()
        await looking
        assert api.ledger.pods_of(KEY) == []

    asyncio.run(run())


def test_a_deleted_pods_agent_is_refused_without_a_question_to_the_api() -> None:
    async def run() -> None:
        api = Api()
        api.ledger.pods[POD.uid] = POD
        api.has = False
        del api.ledger.pods[POD.uid]
        for _ in range(3):
            with pytest.raises(RefusedError, match="the pod is deleted: team/"):
                await api.ledger.run_for(IDENTITY, hello())
        assert api.asked == 0

    asyncio.run(run())


def test_one_whose_deletion_the_mirror_has_missed_is_refused_too() -> None:
    async def run() -> None:
        api = Api()
        api.has = False
        with pytest.raises(RefusedError, match="there is no such pod of a job"):
            await api.ledger.run_for(IDENTITY, hello())

    asyncio.run(run())


def test_why_agents_wait_is_said_now_and_then(caplog: pytest.LogCaptureFixture) -> None:
    async def run() -> None:
        async with KubeCluster.open() as cluster:
            await cluster.trains(cluster.job("other"))  # so agents are served
            pod = cluster.add(training_pod(KEY, 0, 2))
            size = str(100 * MOST_RANKS_OF_A_POD)
            worker = msg.WorkerInfo(f"{pod.agent}.1", 0, 1, hello(size).workers[0].launch)
            asking = dataclasses.replace(hello(size), node=pod.agent, workers=(worker,))
            async with cluster.channel(pod) as channel:
                for _ in range(9):
                    call = relay_pb2_grpc.RelayStub(channel).Attach()
                    await call.write(wrap(relay_pb2.FromAgent, asking))
                    assert await call.code() is grpc.StatusCode.UNAVAILABLE

    with caplog.at_level(logging.INFO):
        asyncio.run(run())
    told = [r.getMessage() for r in caplog.records if "waits (so far" in r.getMessage()]
    assert len(told) == 4, told  # the first, second, fourth and eighth
    assert "it is looked after once enough of them have been made" in told[0]


def test_who_goes_on_asking_fills_no_log(caplog: pytest.LogCaptureFixture) -> None:
    async def run() -> None:
        async with KubeCluster.open() as cluster:
            job = cluster.job("llama")
            await cluster.trains(job)
            async with cluster.channel(POD) as channel:
                for _ in range(9):
                    await refused(channel)

    async def refused(channel: grpc.aio.Channel) -> None:
        call = relay_pb2_grpc.RelayStub(channel).Attach()
        await call.write(wrap(relay_pb2.FromAgent, hello()))
        assert await call.code() is grpc.StatusCode.PERMISSION_DENIED

    with caplog.at_level(logging.WARNING):
        asyncio.run(run())
    told = [r.getMessage() for r in caplog.records if "refused a stream" in r.getMessage()]
    assert len(told) == 4, told  # the first, second, fourth and eighth
