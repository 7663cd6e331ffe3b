"""The agents of a cluster's pods, played by a process of their own: what they cost is none of the controller's.

Each has its own connection and certificate, and tells as often as the controller asks how far its processes are.
"""

import asyncio
import contextlib
import heapq
import logging
import multiprocessing
import os
import random
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

os.environ.setdefault("GRPC_VERBOSITY", "NONE")
sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

import grpc.aio
from support.kube_cluster import SECRET, STEP, Play, PlayedProcess, PodAgent

from torchrelay.controller.kube.cluster.pods import JobKey, Pod, read_pod
from torchrelay.protocol import messages as msg
from torchrelay.protocol.names import NO_RANK
from torchrelay.protocol.security.pod_tls import PodIdentity, SigningRequest, sign
from torchrelay.protocol.security.tls import Credentials
from torchrelay.protocol.transport.telling import TELL_S

AT_ONCE = 50
"""Agents of one process that connect at the same time."""


@dataclass(frozen=True)
class PlayedPod:
    """A pod to play. `first`: its first rank, or NO_RANK. `processes`: how many it has."""

    manifest: dict[str, Any]
    size: int
    first: int
    processes: int


def step_now() -> int:
    """Return the current step. Each job makes one a second."""
    return STEP + int(time.time()) % 100_000


def orders_of(pipe: Connection) -> Iterator[Any]:
    """Yield the orders that can be read; None if the process that measures is gone."""
    try:
        while pipe.poll():
            yield pipe.recv()
    except EOFError:
        yield None


class Site:
    """The agents that one process plays. They connect with `cluster.channel(pod)`, like the agents of KubeCluster."""

    def __init__(self, target: str, pipe: Connection) -> None:
        self.target, self.pipe = target, pipe
        self.is_closing = False
        self.authority = Credentials.from_secret(SECRET, "controller")
        self.plays: dict[JobKey, Play] = {}
        self.agents: dict[str, Agent] = {}
        self.killed_s: dict[JobKey, float] = {}
        self.held: dict[JobKey, int] = {}
        """Jobs that make no step meanwhile: all ranks of a job have to stand at the same one."""
        self.least_pace_s = 0.0
        """Agents tell no more often than that, however often they are asked to, as long as others are to connect."""
        self._ended: set[str] = set()
        """Pods whose end came before they were added."""
        self._due: list[tuple[float, str]] = []
        """When which agent tells next."""

    def channel(self, pod: Pod) -> grpc.aio.Channel:
        request = SigningRequest()
        identity = PodIdentity(pod.key.namespace, pod.name, pod.uid)
        leaf = request.leaf(sign(self.authority, request.pem(), identity))
        return leaf.channel(self.target, self.authority.authority)

    def something(self) -> None:
        """Do nothing: nobody waits for it."""

    def add(self, played: PlayedPod) -> None:
        pod = read_pod(played.manifest)
        assert pod is not None
        if pod.name in self._ended:
            return
        play = self.plays.setdefault(pod.key, Play(pod.key, played.size))
        self.agents[pod.name] = Agent(self, play, pod, played.first, played.processes)
        heapq.heappush(self._due, (time.monotonic() + random.random(), pod.name))

    def told(self, key: JobKey, order: Any) -> None:
        """Note what a process of the job is told: the first order after a death is what was decided."""
        if isinstance(order, msg.Interrupt) and key in self.killed_s:
            self.pipe.send(("decided", key.name, time.time()))
            del self.killed_s[key]

    async def tell(self) -> None:
        """Let each agent report as often as the controller has asked it to."""
        while True:
            while self._due and self._due[0][0] <= time.monotonic():
                due_s, name = heapq.heappop(self._due)
                agent = self.agents[name]
                if agent.gone:
                    continue
                if agent.play.key not in self.held:
                    agent.play.step = max(agent.play.step, step_now())
                agent.tell()
                pace_s = max(agent.pace_s, self.least_pace_s)
                heapq.heappush(self._due, (max(due_s, time.monotonic() - pace_s) + pace_s, name))
            await asyncio.sleep(0.01)

    async def run(self) -> None:
        loop, asked = asyncio.get_running_loop(), asyncio.Queue[Any]()

        def readable() -> None:
            for order in orders_of(self.pipe):
                if order is not None and order[0] == "end":
                    self._end(order[1])  # also while an order before it waits for this very agent to be heard
                else:
                    asked.put_nowait(order)

        loop.add_reader(self.pipe.fileno(), readable)
        telling = asyncio.create_task(self.tell())
        while (order := await asked.get()) is not None:
            await self._obey(*order)
        telling.cancel()
        self.is_closing = True
        for agent in self.agents.values():
            agent.task.cancel()

    async def _obey(self, what: str, of: Any, step: int = 0) -> None:
        if what == "add":
            for number, played in enumerate(of):
                self.add(played)
                if number % AT_ONCE == AT_ONCE - 1:
                    await self._attached()
            await self._attached()
            self.pipe.send(("added",))
        elif what == "watch":
            if (key := JobKey("team", of)) in self.plays:
                self.killed_s[key] = time.time()
                self.plays[key].step = self.held[key] = step
            self.pipe.send(("watching", of))
        elif what == "pace":
            self.least_pace_s = of
        elif what == "go on":
            self.held.pop(JobKey("team", of), None)
        elif what == "kill":
            agent = self.agents[of.partition(":")[0]]
            agent.kill(of)
            self.pipe.send(("killed", agent.play.key.name, time.time()))

    def _end(self, name: str) -> None:
        if name in self.agents:
            self.agents[name].end()
        else:
            self._ended.add(name)

    async def _attached(self) -> None:
        for agent in list(self.agents.values()):
            if not agent.gone:
                await agent.answered.wait()


class Process(PlayedProcess):
    """One of a pod's processes. `trains`: it tells of steps. `count`: how often it has told of some."""

    def __init__(self, play: Play, rank: int) -> None:
        super().__init__(play, rank)
        self.trains, self.count = False, 0


class Agent(PodAgent):
    """The agent of a pod with one process or several."""

    def __init__(self, site: Site, play: Play, pod: Pod, first: int, count: int) -> None:
        ranks = [first + n if first != NO_RANK else NO_RANK for n in range(count)]
        self.processes = {f"{pod.agent}.{n + 1}": Process(play, rank) for n, rank in enumerate(ranks)}
        self._site, self.pace_s = site, TELL_S
        super().__init__(site, play, pod, first)  # type: ignore[arg-type]  # as far as it is used

    def hello(self) -> msg.AgentHello:
        workers = tuple(
            msg.WorkerInfo(worker, process.rank, 1, self._launch(place, process.rank))
            for place, (worker, process) in enumerate(self.processes.items())
        )
        return msg.AgentHello(self.pod.agent, -1, "10.0.0.1", workers, self.pod.uid)

    def _launch(self, place: int, rank: int) -> dict[str, str]:
        if len(self.processes) == 1:
            return self.play.launch if rank != NO_RANK else {}
        numbers = {"RANK": max(rank, place), "LOCAL_RANK": place, "LOCAL_WORLD_SIZE": len(self.processes)}
        size = {"WORLD_SIZE": str(len(self.processes))} if rank == NO_RANK else {}
        return {
            **self.play.launch,
            **{name: str(n) for name, n in numbers.items()},
            **size,
            "TORCHELASTIC_RUN_ID": "job",
        }

    def end(self) -> None:
        """End with the pod."""
        self.gone = self.ended = True
        self.answered.set()  # nobody waits for its answer any more
        self.task.cancel()

    def kill(self, worker: str) -> None:
        """End one process, by SIGKILL."""
        self._end(worker, fenced=False)

    def _end(self, worker: str, fenced: bool) -> None:
        self.processes.pop(worker, None)
        self.gone = not self.processes
        self.send(msg.WorkerExited(worker, 137, 9, fenced))

    def _ordered(self, order: Any) -> None:
        if isinstance(order, msg.TellEvery):
            self.pace_s = order.seconds
        elif isinstance(order, msg.Fence):
            self._end(order.worker, fenced=True)
        elif isinstance(order, msg.ToWorker):
            self._to_process(order)
        else:
            super()._ordered(order)
            self.heard.clear()

    def _to_process(self, to: msg.ToWorker) -> None:
        self._site.told(self.play.key, to.order)
        if (process := self.processes.get(to.worker)) is None:
            return
        if isinstance(to.order, msg.Protect | msg.Commit):
            process.trains = True
        for report in process.answers(to.order):
            self.send(msg.FromWorker(to.worker, report))

    def tell(self) -> None:
        """Tell how far all processes are."""
        self.send(msg.Progress(tuple(self._seen(*each) for each in self.processes.items())))

    def _seen(self, worker: str, process: Process) -> msg.WorkerProgress:
        if not process.trains:
            return msg.WorkerProgress(worker, -1, 0, "set-up", False, 0, "S", 60.0, 60.0)
        process.count += 1
        return msg.WorkerProgress(worker, self.play.step, self.play.step, "body", False, process.count, "R")


def _end_with_the_bench() -> None:
    """End this process once its parent is gone: agents that find no controller any more would try for ever."""
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    os._exit(1)


def play(target: str, pipe: Connection) -> None:
    threading.Thread(target=_end_with_the_bench, daemon=True).start()
    logging.getLogger("asyncio").setLevel(logging.CRITICAL)  # gRPC's client leaves tasks to a stream that has ended
    with contextlib.suppress(KeyboardInterrupt):
        asyncio.run(Site(target, pipe).run())
