"""One job in a cluster whose API is in memory."""

from __future__ import annotations

import asyncio
import contextlib
from collections import UserDict
from collections.abc import Callable, Coroutine
from typing import Any

from support.fake_kube import FakeApi
from torchrelay.controller.kube.client.api import PODS, SPARE_POOLS, Object
from torchrelay.controller.kube.cluster.pods import JobKey, Pod, read_pod
from torchrelay.controller.kube.jobs.ledger import Ledger
from torchrelay.controller.kube.jobs.remembered import Remembered
from torchrelay.controller.kube.jobs.run import JobRun
from torchrelay.controller.kube.reconcilers.migration_requests import MigrationRequests
from torchrelay.controller.kube.reconcilers.spare_keeper import SpareKeeper
from torchrelay.controller.kube.reconcilers.status_writer import StatusWriter
from torchrelay.protocol import messages as msg
from torchrelay.protocol.kube.annotations import PodAnnotations as Asked
from torchrelay.protocol.security.pod_tls import PodIdentity

KEY = JobKey("team", "llama")
LAUNCH = {"WORLD_SIZE": "2", "MASTER_ADDR": "llama-0", "MASTER_PORT": "29500"}


def manifest(name: str, **spec: Any) -> dict[str, Any]:
    env = [{"name": "TORCHRELAY_ASK", "value": "1"}, {"name": "RANK", "value": name[-1]}]
    return {
        "metadata": {
            "name": name,
            "namespace": "team",
            "labels": {"torchrelay.dev/job": "llama"},
            "annotations": {
                "torchrelay.dev/inject": "true",
                "torchrelay.dev/injected": "1",
                "torchrelay.dev/spares": "1",
            },
        },
        "spec": {
            "nodeName": f"n{name[-1]}",
            "restartPolicy": "Never",
            "containers": [{"name": "t", "env": env}],
            **spec,
        },
        "status": {"phase": "Running"},
    }


class Pools(UserDict[JobKey, Object]):
    """A mirror that is never late."""

    def __init__(self, api: FakeApi) -> None:
        super().__init__()
        self._api = api

    def __contains__(self, key: object) -> bool:
        assert isinstance(key, JobKey)
        return (SPARE_POOLS.name, key.namespace, key.name) in self._api.objects

    def __getitem__(self, key: JobKey) -> Object:
        return self._api.objects[SPARE_POOLS.name, key.namespace, key.name]


class World:
    def __init__(self) -> None:
        self.api = FakeApi()
        self.ledger = Ledger(self._find, self._remember)
        self.ledger.pools = Pools(self.api)
        self.status_writer = StatusWriter(self.api, self.ledger)  # type: ignore[arg-type]  # a stand-in
        self.keeper = SpareKeeper(self.api, self.ledger, self.status_writer)  # type: ignore[arg-type]  # a stand-in
        self.migration_requests = MigrationRequests(self.ledger)
        self.remembered = Remembered()
        for rank in range(2):
            self.add(manifest(f"llama-{rank}"))
        self.run = JobRun(KEY, 2, LAUNCH, Asked())
        self.ledger.enter(self.run)

    async def _find(self, identity: PodIdentity) -> Pod | None:
        found = await self.api.get(PODS, identity.pod, identity.namespace)
        return read_pod(found) if found is not None else None

    async def _remember(self, key: JobKey) -> Remembered:
        return self.remembered

    def add(self, pod: dict[str, Any]) -> Pod:
        found = read_pod(self.api.put(PODS, pod))
        assert found is not None
        self.ledger.pods[found.uid] = found
        return found

    def pod(self, name: str) -> Pod:
        found = self.ledger.pod_named(KEY, name)
        assert found is not None
        return found

    def hello(self, pod: Pod, rank: int) -> msg.AgentHello:
        info = msg.WorkerInfo(f"{pod.agent}.1", rank, 1, LAUNCH)
        return msg.AgentHello(pod.agent, -1, "10.0.0.1", (info,))

    def begin(self) -> None:
        for rank in range(2):
            pod = self.pod(f"llama-{rank}")
            self.run.core.attach(self.hello(pod, rank), 1.0)
            armed = msg.Armed(rank, 2, "gloo", "")
            self.run.core.receive(pod.agent, msg.FromWorker(f"{pod.agent}.1", armed), 1.0)

    def spares(self) -> list[Pod]:
        return [p for p in self.ledger.pods_of(KEY) if p.is_spare]


Test = Callable[[World], Coroutine[Any, Any, None]]


def in_world(test: Test) -> None:
    async def run() -> None:
        world = World()
        try:
            await test(world)
        finally:
            for job in [*world.ledger.runs.values(), *world.ledger.over]:
                job.task.cancel()
                with contextlib.suppress(asyncio.CancelledError):
                    await job.task

    asyncio.run(run())
