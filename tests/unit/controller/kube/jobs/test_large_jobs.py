"""What it costs to look after a job's pods grows with their number, and no faster; what is written of it stays small."""

from __future__ import annotations

import asyncio
import contextlib
import json
import time

from support.fake_kube import FakeApi
from support.kube_cluster import SECRET, training_pod

from torchrelay.controller.kube.client.api import PODS, TRAINING_JOBS, Object
from torchrelay.controller.kube.client.informer import Informer
from torchrelay.controller.kube.cluster.pods import JobKey, read_pod
from torchrelay.controller.kube.controller import Controller
from torchrelay.controller.kube.jobs.node_watch import NodeWatch
from torchrelay.controller.kube.jobs.remembered import recall
from torchrelay.controller.kube.jobs.run import JobRun
from torchrelay.controller.kube.pulse import Pulse
from torchrelay.controller.kube.settings import ClusterSettings
from torchrelay.protocol import messages as msg
from torchrelay.protocol.kube.annotations import PodAnnotations
from torchrelay.protocol.security.tls import Credentials

SMALL, LARGE, MOST = 300, 1200, 10.0
KEY = JobKey("team", "llama")


class LargeJob:
    """All of its pods start a process again that was killed, as the kubelet does for most jobs."""

    def __init__(self, size: int) -> None:
        self.api = FakeApi()
        settings = ClusterSettings("torchrelay-system", "controller-0")
        authority = Credentials.from_secret(SECRET, "controller")
        self.controller = Controller(self.api, settings, authority, Pulse())  # type: ignore[arg-type]  # a stand-in
        ledger = self.controller._ledger
        nodes = Informer(self.api, PODS, lambda _found, _deleted: None)  # type: ignore[arg-type]  # a stand-in
        nodes.listed.set()
        self.controller._node_watch = NodeWatch(ledger, nodes)
        launch = {"WORLD_SIZE": str(size)}
        self.run = JobRun(KEY, size, launch, PodAnnotations())
        ledger.enter(self.run)
        for rank in range(size):
            ledger.node_changed({"metadata": {"name": f"n{rank}"}, "spec": {}}, False)
            manifest = training_pod(KEY, rank, size)
            manifest["metadata"]["creationTimestamp"] = "2026-01-01T00:00:00Z"
            manifest["spec"]["restartPolicy"] = "OnFailure"
            pod = read_pod(self.api.put(PODS, manifest))
            assert pod is not None
            ledger.pods[pod.uid] = pod
            info = msg.WorkerInfo(f"{pod.agent}.1", rank, 1, launch)
            self.run.core.attach(msg.AgentHello(pod.agent, -1, "10.0.0.1", (info,)), 1.0)
            self.run.core.receive(
                pod.agent, msg.FromWorker(info.worker, msg.Armed(rank, size, "gloo", "")), 1.0 + rank / size
            )
        self.run.core.tick(3.0)
        self.run.core.take()

    @property
    def status(self) -> Object:
        found: Object = self.api.named(TRAINING_JOBS, "llama")["status"]
        return found

    async def fastest_look_s(self) -> float:
        taken = []
        for _ in range(4):
            began_s = time.thread_time()
            await self.controller._look(self.run)
            self.run.core.take()
            taken.append(time.thread_time() - began_s)
        return min(taken)

    async def end(self) -> None:
        self.run.task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self.run.task


def test_a_look_costs_in_proportion_to_a_job_s_size_and_asks_the_api_for_nothing() -> None:
    async def test() -> None:
        small, large = LargeJob(SMALL), LargeJob(LARGE)
        ratio = await large.fastest_look_s() / await small.fastest_look_s()
        assert large.run.core.job.protection == "on"
        assert ratio < MOST, f"{ratio:.1f} times as much for {LARGE // SMALL} times the pods"
        large.api.calls.clear()
        await large.controller._look(large.run)
        assert large.api.calls == []
        for job in (small, large):
            await job.end()

    asyncio.run(test())


def test_the_status_counts_ranks_names_the_exceptional_ones_and_lets_another_controller_know_them_all() -> None:
    async def test() -> None:
        job = LargeJob(SMALL)
        await job.controller._look(job.run)
        assert job.status["rankStates"] == {"starting": SMALL, "running": 0, "standing": 0, "lost": 0, "finished": 0}
        assert job.status["ranks"] == []
        assert recall(job.status).holders == job.run.core.job.holders
        assert recall(job.status).machines[f"{KEY.name}-7:{job.run.core.job.holders[7][-10:-2]}"] == "n7"
        assert len(json.dumps(job.status)) < 4_000 + 20 * SMALL
        pod = job.run.core.job.holder(7)
        job.run.core.receive(pod.node, msg.WorkerExited(pod.worker, 137, 9, False), 4.0)
        await job.controller._status_writer.write(job.run)
        assert [(r["rank"], r["state"]) for r in job.status["ranks"]] == [(7, "lost")]
        await job.end()

    asyncio.run(test())
