"""A job of whoever attacks: pods with certificates, whose agents say what they like."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import time
from collections.abc import Callable, Mapping
from typing import Any

import grpc.aio
from attack.draw import Draw, Known
from attack.process import Controlled
from attack.tally import Tally
from support.kube_cluster import SECRET, Play, PodAgent, training_pod

from torchrelay.controller.kube.cluster.pods import JobKey, Pod, read_pod
from torchrelay.protocol import messages as msg
from torchrelay.protocol import relay_pb2
from torchrelay.protocol.errors import FrameError
from torchrelay.protocol.kube import kube_names as kube
from torchrelay.protocol.names import NO_RANK
from torchrelay.protocol.security.pod_tls import PodIdentity, PodLeaf, SigningRequest, sign
from torchrelay.protocol.security.tls import Credentials
from torchrelay.protocol.transport.incoming import received
from torchrelay.protocol.words.positions import StandingPosition

NAMESPACE = "attacked"
STATE_S = 20.0


class Hostile(PodAgent):
    """Answers as an agent of a job would, until the order that it waits for comes: it says all sorts of things then, and answers
    that order or not."""

    def __init__(self, pods: Attacked, play: Play, pod: Pod, rank: int, launch: dict[str, str] | None = None) -> None:
        self._pods = pods
        super().__init__(pods, play, pod, rank, launch)

    def _ordered(self, order: Any) -> None:
        inner = order.order if isinstance(order, msg.ToWorker) else order
        if self._pods.stands is not None and isinstance(inner, msg.Interrupt) and not self.joins:
            self.say(self._pods.standing(inner.generation))
            return
        if type(inner).__name__ == self._pods.at:
            self._pods.reached += 1
            for packed in self._pods.absurd(getattr(inner, "generation", 0)):
                self.send(packed)
            if self._pods.draw.chance.random() < 0.5:
                self.heard.append(order)
                return
        if isinstance(inner, msg.FetchKept) and self._pods.keeps_copies:
            self._tell_copies()
        super()._ordered(order)

    def answers(self, order: Any) -> list[Any]:
        found = super().answers(order)
        if not self._pods.keeps_copies:
            return found
        own = msg.ReplicaCheck(3, {"w": f"of rank {self.rank}"}, ("w",))
        return [own if isinstance(each, msg.ReplicaCheck) else each for each in found]

    def _tell_copies(self) -> None:
        """Of all ranks: each pod has them."""
        step = self.play.step - 1
        copies = (msg.KeptCopy(rank, step, f"/kept/{rank}", b"copy", b"set-up") for rank in range(self.play.size))
        self.send(msg.KeptCopies(tuple(copies)))


class Attacked:
    """A job of whoever attacks, with a certificate for each of its pods. It ends with the `async with`."""

    def __init__(
        self,
        controlled: Controlled,
        name: str,
        draw: Draw,
        tally: Tally,
        at: str = "",
        burst: int = 0,
        annotations: Mapping[str, str] | None = None,
    ) -> None:
        self.controlled, self.name, self.draw, self.tally, self.at, self.burst = (
            controlled,
            name,
            draw,
            tally,
            at,
            burst,
        )
        self.reached = 0
        self._annotations = dict(annotations or {})
        self.keeps_copies = kube.BUDDY_EVERY in self._annotations
        """No rank holds what another one does, and each pod has copies of all."""
        self.is_closing = False
        self.stands: StandingPosition | None = None
        """Where its ranks say that they stand: they could, and the decision is made on it."""
        self.play = Play(JobKey(NAMESPACE, name), 2)
        self.agents: list[PodAgent] = []
        self.pods: list[Pod] = []
        self._authority = Credentials.from_secret(SECRET, "attacker")
        self._seen: set[str] = set()
        self._channels: list[grpc.aio.Channel] = []
        self._changed = asyncio.Event()
        self.latest: dict[str, Any] = {}

    async def __aenter__(self) -> Attacked:
        made = await self.controlled.ask("pods", job=self.name, size=self.play.size, annotations=self._annotations)
        for rank, pod in enumerate(made):
            self._take_in(pod, rank)
        return self

    async def __aexit__(self, *_: object) -> None:
        self.is_closing = True
        for agent in self.agents:
            agent.task.cancel()
        await asyncio.gather(*(a.task for a in self.agents), return_exceptions=True)
        for channel in self._channels:
            await channel.close()
        for agent in self.agents:
            agent.heard.clear()
        self.agents.clear()
        self.play.agents.clear()
        self._channels.clear()
        gc.collect()  # gRPC keeps a connection as long as somebody has a call of its
        await self.controlled.ask("remove", job=self.name)

    def _take_in(self, made: dict[str, Any], rank: int) -> None:
        self._seen.add(made["uid"])
        pod = pod_named(made["name"], made["uid"], self.name)
        self.pods.append(pod)
        launch = {} if rank == NO_RANK else None
        agent = Hostile(self, self.play, pod, rank, launch)
        self.agents.append(agent)
        self.play.agents.append(agent)

    def leaf(self, pod: Pod, authority: Credentials | None = None) -> PodLeaf:
        request = SigningRequest()
        return request.leaf(
            sign(authority or self._authority, request.pem(), PodIdentity(NAMESPACE, pod.name, pod.uid))
        )

    def channel(self, pod: Pod, authority: Credentials | None = None) -> grpc.aio.Channel:
        channel = self.leaf(pod, authority).channel(
            f"127.0.0.1:{self.controlled.ports['relay']}", self._authority.authority
        )
        self._channels.append(channel)
        return channel

    def something(self) -> None:
        self._changed.set()

    async def until(self, true: Callable[[], Any], within_s: float = STATE_S) -> bool:
        end_s = time.monotonic() + within_s
        while time.monotonic() < end_s:
            await self.look()
            if true():
                return True
            self._changed.clear()
            with contextlib.suppress(asyncio.TimeoutError):
                await asyncio.wait_for(self._changed.wait(), 0.1)
        return False

    async def look(self) -> None:
        self.latest = await self.controlled.ask("look", job=self.name)
        for pod in self.latest["pods"]:
            if pod["spare"] and pod["uid"] not in self._seen:
                self._take_in(pod, NO_RANK)

    def known(self, generation: int = 0) -> Known:
        workers = tuple(a.worker for a in self.agents)
        step = self.play.step
        return Known(workers, (-1, 0, 1, generation, generation + 1, step - 1, step, step + 1))

    def absurd(self, generation: int) -> list[relay_pb2.FromAgent]:
        return [self.one(generation) for _ in range(self.burst)]

    def standing(self, generation: int) -> msg.Standing:
        """What a rank could say that stands there, with or without the gate of the step behind it."""
        assert self.stands is not None
        step, passed = self.play.step, self.draw.chance.randrange(2)
        self.tally.sent(f"stands {self.stands.value}")
        return msg.Standing(generation, step, step + passed, self.stands.value, "", "10.0.0.1", 7000)

    def one(self, generation: int) -> relay_pb2.FromAgent:
        """One more message; what is going to be left out, and why, is what the one place says that looks at all messages."""
        name, packed = self.draw.packed(relay_pb2.FromAgent, self.known(generation))
        kind = f"absurd {name}"
        self.tally.sent(kind)
        try:
            received(packed)
        except FrameError as e:
            self.tally.refuse(kind, str(e))
        return packed


def pod_named(name: str, uid: str, job: str) -> Pod:
    manifest = training_pod(JobKey(NAMESPACE, job), 0, 1)
    manifest["metadata"] |= {"name": name, "uid": uid, "creationTimestamp": "2026-01-01T00:00:00Z"}
    pod = read_pod(manifest)
    assert pod is not None
    return pod


def hello_of(pod: Pod, worker: str = "") -> msg.AgentHello:
    workers = (msg.WorkerInfo(worker, 0, 1, {"WORLD_SIZE": "2"}),) if worker else ()
    return msg.AgentHello(pod.agent, -1, "10.0.0.1", workers, pod.uid)


async def told_once(first: Any) -> Any:
    yield first
    await asyncio.Event().wait()
