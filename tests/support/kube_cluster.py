"""The real controller of a cluster on its real TLS ports, with an API in memory; agents and their processes are played."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from typing import Any, Protocol

import grpc
import grpc.aio

from support.fake_kube import FakeApi
from support.ports import free_port
from torchrelay.controller.kube.client.api import MIGRATIONS, PODS, TRAINING_JOBS, Object
from torchrelay.controller.kube.cluster.pods import JobKey, Pod, read_pod
from torchrelay.controller.kube.controller import Controller
from torchrelay.controller.kube.pulse import Pulse
from torchrelay.controller.kube.settings import ClusterSettings
from torchrelay.protocol import messages as msg
from torchrelay.protocol import relay_pb2, relay_pb2_grpc
from torchrelay.protocol.kube import kube_names as kube
from torchrelay.protocol.names import NO_RANK
from torchrelay.protocol.security.pod_tls import PodIdentity, PodLeaf, SigningRequest, sign
from torchrelay.protocol.security.tls import Credentials
from torchrelay.protocol.transport.convert import from_proto, wrap

WITHIN_S = 60.0
STEP = 5
SECRET = b"0123456789abcdef0123456789abcdef"


def training_pod(key: JobKey, rank: int, size: int, **annotations: str) -> Object:
    """As the webhook leaves it."""
    env = [{"name": "TORCHRELAY_ASK", "value": "1"}, {"name": "RANK", "value": str(rank)}]
    meta = {
        "name": f"{key.name}-{rank}",
        "namespace": key.namespace,
        "labels": {kube.JOB: key.name},
        "annotations": {kube.INJECT: "true", kube.INJECTED: "1", kube.SPARES: "1", **annotations},
    }
    spec = {"nodeName": f"n{rank}", "restartPolicy": "Never", "containers": [{"name": "train", "env": env}]}
    return {"metadata": meta, "spec": spec, "status": {"phase": "Running"}}


@dataclass
class Play:
    """What the processes of one job have in common."""

    key: JobKey
    size: int
    step: int = STEP
    quiesce: tuple[int, int] = (0, STEP)
    agents: list[PodAgent] = field(default_factory=list)

    @property
    def launch(self) -> dict[str, str]:
        return {"WORLD_SIZE": str(self.size), "MASTER_ADDR": f"{self.key.name}-0", "MASTER_PORT": "29500"}

    def agent_of(self, rank: int) -> PodAgent:
        """Who has the rank now."""
        return next(a for a in reversed(self.agents) if a.rank == rank and not a.gone)


class PodsWorld(Protocol):
    """What a played agent needs of the cluster that its pod is in."""

    is_closing: bool

    def channel(self, pod: Pod) -> grpc.aio.Channel: ...

    def something(self) -> None:
        """Wake whoever waits for a change."""

    async def until(self, true: Callable[[], Any], within_s: float = WITHIN_S) -> Any: ...


class PlayedProcess:
    """One process of a job, and what it answers to orders. `joins`: it is about to take over its rank."""

    def __init__(self, play: Play, rank: int) -> None:
        self.play, self.rank, self.joins = play, rank, False

    def answers(self, order: Any) -> list[Any]:  # noqa: C901 - one case for each order
        g, step = getattr(order, "generation", 0), self.play.step
        match order:
            case msg.Begin():
                return (
                    [msg.Warm("2.13")] if self.rank == NO_RANK else [msg.Armed(self.rank, self.play.size, "gloo", "")]
                )
            case msg.Protect(True):
                same = msg.ReplicaCheck(3, {"w": "aa"}, ("w",))
                return [msg.Report("train.py", 7, 4096, 100, 1, (), (), (), step, True), same]
            case msg.CopyJournals(node=keeper) if keeper:
                return [msg.JournalsCopied(keeper, step)]
            case msg.Interrupt() if not self.joins:
                return [msg.Standing(g, step, step, "body", "", "10.0.0.1", 7000)]
            case msg.Interrupt():
                return [msg.Prepared(g, "10.0.0.1", 7001)]
            case msg.Assign(rank=rank):
                self.rank, self.joins = rank, True
                return [msg.Prepared(g, "10.0.0.1", 7001)]
            case msg.QuiesceAt(number, _, boundary):
                self.play.quiesce = (g, boundary)
                return [msg.QuiesceAnswer(number, True, step)]
            case msg.QuiesceDecided(_, True):
                g, self.play.step = self.play.quiesce
                return [msg.Standing(g, self.play.step, self.play.step, "head", "", "10.0.0.1", 7000)]
            case msg.Serve():
                return [msg.Serving(g, "10.0.0.1", 9000)]
            case msg.Plan(action="enter" | "shadow"):
                return [msg.Transferred(g, 4096, 2, 0.1)]
            case msg.Rebuild():
                return [msg.Rebuilt(g, 0.1), msg.Verified(g)]
            case msg.Commit():
                self.joins = False
                return [msg.Resumed(g, 1), msg.FirstStep(g, step + 1)]
            case msg.Explain(request=request):
                return [msg.Explained(request, ("f (train.py:3)",), "still", "itself")]
        return []


class PodAgent(PlayedProcess):
    """The agent of one pod and its process. `heard`: orders, the latest last. `mute`: the process answers none.

    `ended`: the agent opens no other stream once this one is over.
    """

    def __init__(
        self, cluster: PodsWorld, play: Play, pod: Pod, rank: int, launch: dict[str, str] | None = None
    ) -> None:
        super().__init__(play, rank)
        self.pod = pod
        self.worker = f"{pod.agent}.1"
        self.heard: list[Any] = []
        self.mute = self.gone = self.ended = False
        self.launch = play.launch if launch is None else launch
        self._cluster = cluster
        self._queue: asyncio.Queue[Any] = asyncio.Queue()
        self.answered = asyncio.Event()
        self.task = asyncio.create_task(self._run())

    def hello(self) -> msg.AgentHello:
        """Return its first message on each stream."""
        info = msg.WorkerInfo(self.worker, self.rank, 1, self.launch)
        return msg.AgentHello(self.pod.agent, -1, "10.0.0.1", (info,), self.pod.uid)

    def send(self, message: Any) -> None:
        self._queue.put_nowait(message)

    def say(self, report: Any) -> None:
        self.send(msg.FromWorker(self.worker, report))

    def die(self) -> None:
        """The process, by SIGKILL."""
        self.gone = True
        self.send(msg.WorkerExited(self.worker, 137, 9, False))

    async def heard_of(self, kind: type, within_s: float = WITHIN_S) -> Any:
        """The first order of the kind, to the agent or to its process."""
        await self._cluster.until(lambda: self._of(kind), within_s)
        return self._of(kind)[0]

    def _of(self, kind: type) -> list[Any]:
        inner = (order.order if isinstance(order, msg.ToWorker) else order for order in self.heard)
        return [order for order in inner if isinstance(order, kind)]

    async def _run(self) -> None:
        """As an agent does: opens the stream again whenever it ends.

        A stream that fails as this is cancelled raises its failure instead: the cancellation is lost, so the end is looked for.
        """
        while not (self._cluster.is_closing or self.ended):
            async with self._cluster.channel(self.pod) as channel:
                call = relay_pb2_grpc.RelayStub(channel).Attach(self._told())
                with contextlib.suppress(grpc.aio.AioRpcError):  # refused, or the controller is away
                    async for packed in call:
                        self.answered.set()
                        self._ordered(from_proto(packed))
            self._queue = asyncio.Queue()  # the stream before still waits for the next message of that one
            await asyncio.sleep(0.1)

    async def _told(self) -> AsyncIterator[relay_pb2.FromAgent]:
        yield wrap(relay_pb2.FromAgent, self.hello())
        queue = self._queue
        while True:
            message = await queue.get()
            yield message if isinstance(message, relay_pb2.FromAgent) else wrap(relay_pb2.FromAgent, message)

    def _ordered(self, order: Any) -> None:
        self.heard.append(order)
        self._cluster.something()
        if isinstance(order, msg.FetchJournal):
            step = self.play.step
            journals = {n: f"{order.worker}@{n}".encode() for n in (step - 1, step)}
            self.send(msg.JournalContent(order.worker, journals, {step - 1: b"gate"}, b"set-up"))
        elif isinstance(order, msg.Fence):
            self.gone = True
            self.send(msg.WorkerExited(order.worker, 137, 9, True))
        elif isinstance(order, msg.ToWorker) and not self.mute:
            for report in self.answers(order.order):
                self.say(report)


class KubeCluster:
    """Spares' pods are run as soon as the controller makes them."""

    api_of_kind: type[FakeApi] = FakeApi

    def __init__(self, **settings: Any) -> None:
        self.api = self.api_of_kind()
        self.authority = Credentials.from_secret(SECRET, "controller")
        self.trusted = self.authority.authority
        self.settings = ClusterSettings(
            "torchrelay-system",
            "controller-0",
            host="127.0.0.1",
            relay_port=free_port(),
            enrol_port=free_port(),
            ready_port=free_port(),
            **settings,
        )
        self.pulse = Pulse()
        self.controller = Controller(self.api, self.settings, self.authority, self.pulse)  # type: ignore[arg-type]  # a stand-in
        self.plays: dict[JobKey, Play] = {}
        self._leaves: dict[str, PodLeaf] = {}
        self._agents: list[PodAgent] = []
        self._changed = asyncio.Event()
        self._names = itertools.count()
        self.is_closing = False
        self.task = asyncio.create_task(self.controller.run())
        self._kubelet = asyncio.create_task(self._run_spares())

    @classmethod
    @contextlib.asynccontextmanager
    async def open(cls, **settings: Any) -> AsyncIterator[KubeCluster]:
        cluster = cls(**settings)
        try:
            yield cluster
        finally:
            cluster.is_closing = True
            tasks = [cluster.task, cluster._kubelet, *(a.task for a in cluster._agents)]
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    @property
    def target(self) -> str:
        return f"127.0.0.1:{self.settings.relay_port}"

    def channel(self, pod: Pod) -> grpc.aio.Channel:
        return self._leaf(pod).channel(self.target, self.trusted)

    def _leaf(self, pod: Pod) -> PodLeaf:
        if pod.uid not in self._leaves:
            request = SigningRequest()
            identity = PodIdentity(pod.key.namespace, pod.name, pod.uid)
            self._leaves[pod.uid] = request.leaf(sign(self.authority, request.pem(), identity))
        return self._leaves[pod.uid]

    async def restart(self, authority: Credentials) -> None:
        """Another controller, with another authority, at the same place. Agents trust whom they did."""
        gone = [a.task for a in self._agents if a.gone]
        for task in (self.task, *gone):
            task.cancel()
        await asyncio.gather(self.task, *gone, return_exceptions=True)
        self.authority = authority
        self.controller = Controller(self.api, self.settings, authority, self.pulse)  # type: ignore[arg-type]  # a stand-in
        self.task = asyncio.create_task(self.controller.run())

    def renew(self) -> None:
        """All agents get new certificates, and learn whom to trust: those that connect from now on."""
        self.trusted = self.authority.authority
        for agent in self._agents:
            self._leaves.pop(agent.pod.uid, None)
            self._leaf(agent.pod)

    def something(self) -> None:
        self._changed.set()

    async def until(self, true: Callable[[], Any], within_s: float = WITHIN_S) -> None:
        # Without a `wait_for` around it: the one inside can swallow the cancellation, and both would wait for ever.
        until_s = time.monotonic() + within_s
        while not true():
            assert not self.task.done(), self.task
            if time.monotonic() > until_s:
                raise asyncio.TimeoutError
            self._changed.clear()
            with contextlib.suppress(asyncio.TimeoutError):
                await asyncio.wait_for(self._changed.wait(), 0.05)  # what the API is told tells nobody

    def add(self, pod: Object) -> Pod:
        found = read_pod(self.api.put(PODS, pod))
        assert found is not None
        return found

    def agent(self, play: Play, pod: Pod, rank: int, launch: dict[str, str] | None = None) -> PodAgent:
        agent = PodAgent(self, play, pod, rank, launch)
        play.agents.append(agent)
        self._agents.append(agent)
        return agent

    def job(self, name: str, size: int = 2, namespace: str = "team", **annotations: str) -> Play:
        """Its pods, and their agents with a rank each."""
        key = JobKey(namespace, name)
        play = self.plays[key] = Play(key, size)
        for rank in range(size):
            self.agent(play, self.add(training_pod(key, rank, size, **annotations)), rank)
        return play

    async def trains(self, play: Play) -> None:
        """Returns once it is protected, with a warm spare."""
        await self.until(lambda: self.status(play).get("protection") == "protected")

    def status(self, play: Play) -> Object:
        found = self.api.objects.get((TRAINING_JOBS.name, play.key.namespace, play.key.name)) or {}
        status: Object = found.get("status") or {}
        return status

    def outcomes(self, play: Play) -> list[str]:
        """Of its migrations."""
        ours = (m for m in self.api.all(MIGRATIONS) if m["spec"]["job"] == play.key.name)
        return [m["status"]["outcome"] for m in ours if (m.get("status") or {}).get("outcome")]

    async def moves(self, play: Play, rank: int = 0) -> None:
        """Returns once somebody's wish to move the rank has been fulfilled."""
        await self.done(play, self._wish(play, rank))

    def _wish(self, play: Play, rank: int) -> str:
        meta = {"name": f"wish-{next(self._names)}", "namespace": play.key.namespace}
        spec = {"job": play.key.name, "rank": rank, "reason": "a new fan"}
        return str(self.api.put(MIGRATIONS, {"metadata": meta, "spec": spec})["metadata"]["name"])

    async def done(self, play: Play, name: str, within_s: float = WITHIN_S) -> None:
        """Returns once the wish has been fulfilled."""

        def outcome() -> str:
            found = self.api.named(MIGRATIONS, name, play.key.namespace)
            return str((found.get("status") or {}).get("outcome", ""))

        await self.until(outcome, within_s)
        assert outcome() == "committed", self.api.named(MIGRATIONS, name, play.key.namespace)["status"]

    async def _run_spares(self) -> None:
        async for what, manifest in self.api.watch(PODS, ""):
            labels = manifest["metadata"]["labels"]
            play = self.plays.get(JobKey(manifest["metadata"]["namespace"], labels[kube.JOB]))
            if what == "ADDED" and labels.get(kube.ROLE) == kube.SPARE and play is not None:
                pod = read_pod(manifest)
                assert pod is not None
                self.agent(play, pod, NO_RANK, {})
