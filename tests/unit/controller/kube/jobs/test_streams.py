"""How many streams a pod may have open: each can have a message of the largest size on its way. Over real TLS ports."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import grpc
import grpc.aio
import pytest
from support.kube_cluster import KubeCluster
from support.logged_errors import errors_of

from torchrelay.controller.kube.jobs.router import MOST_STREAMS_OF_A_POD
from torchrelay.protocol import relay_pb2, relay_pb2_grpc


async def silent() -> AsyncIterator[Any]:
    await asyncio.Event().wait()
    yield relay_pb2.FromAgent()


def test_a_pod_with_too_many_is_told_so_and_gets_one_again_when_others_end() -> None:
    async def run() -> None:
        async with KubeCluster.open() as cluster:
            job = cluster.job("llama")
            await cluster.trains(job)
            async with cluster.channel(job.agents[0].pod) as channel:
                stub = relay_pb2_grpc.RelayStub(channel)
                calls = [stub.Attach(silent()) for _ in range(MOST_STREAMS_OF_A_POD)]  # and the agent has one
                done, _ = await asyncio.wait(
                    [asyncio.create_task(call.code()) for call in calls], return_when=asyncio.FIRST_COMPLETED
                )
                assert {task.result() for task in done} == {grpc.StatusCode.RESOURCE_EXHAUSTED}
                assert sum(call.done() for call in calls) == 1
                for call in calls:
                    call.cancel()
            await cluster.moves(job, 1)

    asyncio.run(run())


def test_a_command_at_the_port_of_a_cluster_is_turned_away_without_a_traceback(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def run() -> None:
        async with KubeCluster.open() as cluster:
            job = cluster.job("llama")
            await cluster.trains(job)
            async with cluster.channel(job.agents[0].pod) as channel:
                with pytest.raises(grpc.aio.AioRpcError, match="in a cluster, look at the job's TrainingJob"):
                    await relay_pb2_grpc.RelayStub(channel).Stop(relay_pb2.StopRequest(signal=9))

    asyncio.run(run())
    assert errors_of(caplog) == []
