"""What many jobs, or one large one, cost the controller of a cluster: its own process, agents connected over gRPC with TLS.

Prints one JSON object. `decision_s`: from the moment at which a process is killed (its agent says so) to the one at which the
first survivor has been told to leave its communicators, as the agents' processes see it: the median, the 99 % share, the longest.
`loop_s`: for how long the controller's loop stood still. `cores`, `rss_mib`: of the controller's process, without anything
beside it; the API is in memory there and counts as its cost. `writes_per_s`: what it asked of the API while all trained.
Agents are played by other processes: each has its own connection and certificate, and tells as often as the controller asks how
far it is.
"""

import argparse
import asyncio
import contextlib
import heapq
import itertools
import json
import multiprocessing
import os
import random
import sys
import time
from collections import Counter
from collections.abc import Iterator
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

os.environ.setdefault("GRPC_VERBOSITY", "NONE")
sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

import grpc.aio
import psutil
from support.kube_cluster import SECRET, STEP, KubeCluster, Play, PodAgent, training_pod

from torchrelay.controller.kube.client.api import PODS
from torchrelay.controller.kube.cluster.pods import JobKey, Pod, read_pod
from torchrelay.protocol import messages as msg
from torchrelay.protocol.kube import kube_names as kube
from torchrelay.protocol.names import NO_RANK
from torchrelay.protocol.security.pod_tls import PodIdentity, SigningRequest, sign
from torchrelay.protocol.security.tls import Credentials
from torchrelay.protocol.transport.telling import TELL_S

MIB = 1 << 20
AT_ONCE = 50
"""Agents of one process that connect at the same time."""
READY_S, SETTLED_S = 900.0, 120.0


def step_now() -> int:
    """Each job makes one a second."""
    return STEP + int(time.time()) % 100_000


def orders_of(pipe: Connection) -> Iterator[Any]:
    """What is there to read; None if the process that measures is gone."""
    try:
        while pipe.poll():
            yield pipe.recv()
    except EOFError:
        yield None


class Site:
    """The agents that one process plays. They speak with `cluster.channel(pod)`, as those of KubeCluster do."""

    def __init__(self, target: str, pipe: Connection) -> None:
        self.target, self.pipe = target, pipe
        self.is_closing = False
        self.authority = Credentials.from_secret(SECRET, "controller")
        self.plays: dict[JobKey, Play] = {}
        self.agents: dict[str, Agent] = {}
        self.killed_s: dict[JobKey, float] = {}
        self.held: dict[JobKey, int] = {}
        """Jobs that make no step meanwhile: all ranks of a job have to stand at the same one."""
        self._due: list[tuple[float, str]] = []
        """When which agent tells next."""

    def channel(self, pod: Pod) -> grpc.aio.Channel:
        request = SigningRequest()
        identity = PodIdentity(pod.key.namespace, pod.name, pod.uid)
        leaf = request.leaf(sign(self.authority, request.pem(), identity))
        return leaf.channel(self.target, self.authority.authority)

    def something(self) -> None:
        """Nobody waits for it."""

    def add(self, manifest: dict[str, Any], size: int, rank: int) -> None:
        pod = read_pod(manifest)
        assert pod is not None
        play = self.plays.setdefault(pod.key, Play(pod.key, size))
        self.agents[pod.name] = Agent(self, play, pod, rank)
        heapq.heappush(self._due, (time.monotonic() + random.random(), pod.name))

    def orders(self, agent: "Agent", order: Any) -> None:
        inner = order.order if isinstance(order, msg.ToWorker) else order
        key = agent.play.key
        if isinstance(inner, msg.Interrupt) and key in self.killed_s:
            self.pipe.send(("decided", key.name, time.time()))
            del self.killed_s[key]

    async def tell(self) -> None:
        """Each agent as often as the controller has asked it to."""
        while True:
            while self._due and self._due[0][0] <= time.monotonic():
                due_s, name = heapq.heappop(self._due)
                agent = self.agents[name]
                if agent.gone:
                    continue
                if agent.play.key not in self.held:
                    agent.play.step = max(agent.play.step, step_now())
                agent.tell()
                heapq.heappush(self._due, (max(due_s, time.monotonic() - agent.pace_s) + agent.pace_s, name))
            await asyncio.sleep(0.01)

    async def run(self) -> None:
        loop, asked = asyncio.get_running_loop(), asyncio.Queue[Any]()

        def readable() -> None:
            for order in orders_of(self.pipe):
                asked.put_nowait(order)

        loop.add_reader(self.pipe.fileno(), readable)
        telling = asyncio.create_task(self.tell())
        while (order := await asked.get()) is not None:
            what, *more = order
            if what == "add":
                for number, (manifest, size, rank) in enumerate(more[0]):
                    self.add(manifest, size, rank)
                    if number % AT_ONCE == AT_ONCE - 1:
                        await self._attached()
                await self._attached()
                self.pipe.send(("added",))
            elif what == "watch":
                key = JobKey("team", more[0])
                if key in self.plays:
                    self.killed_s[key] = time.time()
                    self.plays[key].step = self.held[key] = more[1]
            elif what == "go on":
                self.held.pop(JobKey("team", more[0]), None)
            elif what == "kill":
                agent = self.agents[more[0]]
                agent.die()
                self.pipe.send(("killed", agent.play.key.name, time.time()))
        telling.cancel()
        self.is_closing = True
        for agent in self.agents.values():
            agent.task.cancel()

    async def _attached(self) -> None:
        for agent in list(self.agents.values()):
            await agent.answered.wait()


class Agent(PodAgent):
    def __init__(self, site: Site, play: Play, pod: Pod, rank: int) -> None:
        super().__init__(site, play, pod, rank, None if rank != NO_RANK else {})  # type: ignore[arg-type]  # as far as it is used
        self._site, self.trains, self._count, self.pace_s = site, False, 0, TELL_S

    def _ordered(self, order: Any) -> None:
        if isinstance(order, msg.ToWorker) and isinstance(order.order, msg.Protect | msg.Commit):
            self.trains = True
        if isinstance(order, msg.TellEvery):
            self.pace_s = order.seconds
        self._site.orders(self, order)
        super()._ordered(order)
        self.heard.clear()

    def tell(self) -> None:
        if self.trains:
            self._count += 1
            step = self.play.step
            seen = msg.WorkerProgress(self.worker, step, step, "body", False, self._count, "R")
        else:
            seen = msg.WorkerProgress(self.worker, -1, 0, "set-up", False, 0, "S", 60.0, 60.0)
        self.send(msg.Progress((seen,)))


def play(target: str, pipe: Connection) -> None:
    with contextlib.suppress(KeyboardInterrupt):
        asyncio.run(Site(target, pipe).run())


class Cluster(KubeCluster):
    """Spares' pods are played by the other processes, too."""

    def __init__(self, **settings: Any) -> None:
        self.sites: list[Connection] = []
        self.site_of: dict[str, Connection] = {}
        """By pod."""
        self._places = itertools.count()
        super().__init__(**settings)

    async def _run_spares(self) -> None:
        async for what, manifest in self.api.watch(PODS, ""):
            labels = manifest["metadata"]["labels"]
            if what == "ADDED" and labels.get(kube.ROLE) == kube.SPARE:
                key = JobKey(manifest["metadata"]["namespace"], labels[kube.JOB])
                self.give([(manifest, self.plays[key].size, NO_RANK)])

    async def settled(self, key: JobKey, count: int) -> str:
        """The outcome of the job's latest migration, of so many, once there is a warm spare again."""
        job = self.plays[key]
        await self.until(lambda: len(self.outcomes(job)) >= count, SETTLED_S)
        await self.until(lambda: self.status(job).get("sparesWarm", 0) >= 1, SETTLED_S)
        return self.outcomes(job)[-1]

    def give(self, pods: list[Any]) -> None:
        """Manifests with size and rank: to be played."""
        parts: list[list[Any]] = [[] for _ in self.sites]
        for pod in pods:
            place = next(self._places) % len(self.sites)
            parts[place].append(pod)
            self.site_of[pod[0]["metadata"]["name"]] = self.sites[place]
        for site, part in zip(self.sites, parts):
            site.send(("add", part))


async def longest_turns(found: list[float]) -> None:
    while True:
        began_s = time.monotonic()
        await asyncio.sleep(0.01)
        found.append(time.monotonic() - began_s - 0.01)


def share(of: list[float], part: float) -> float:
    ordered = sorted(of)
    return round(ordered[min(len(ordered) - 1, int(part * len(ordered)))], 4) if ordered else -1.0


def shares(of: list[float]) -> dict[str, float]:
    return {"median": share(of, 0.5), "p99": share(of, 0.99), "most": share(of, 1.0), "count": len(of)}


async def measure(jobs: int, ranks: int, kills: int, seconds: float, processes: int) -> dict[str, Any]:  # noqa: C901 - one measurement from its beginning to its end
    async with Cluster.open() as cluster:
        assert isinstance(cluster, Cluster)
        children, context = [], multiprocessing.get_context("spawn")
        for _ in range(processes):
            ours, theirs = context.Pipe()
            cluster.sites.append(ours)
            children.append(context.Process(target=play, args=(cluster.target, theirs), daemon=True))
            children[-1].start()
        own, heard = psutil.Process(), asyncio.Queue[Any]()
        loop = asyncio.get_running_loop()

        def readable(pipe: Connection) -> None:
            while pipe.poll():
                heard.put_nowait(pipe.recv())

        for pipe in cluster.sites:
            loop.add_reader(pipe.fileno(), readable, pipe)
        empty_mib, began_s = own.memory_info().rss / MIB, time.monotonic()
        pods = []
        for number in range(jobs):
            key = JobKey("team", f"job-{number}")
            cluster.plays[key] = Play(key, ranks)
            for rank in range(ranks):
                manifest = training_pod(key, rank, ranks)
                manifest["metadata"]["creationTimestamp"] = "2026-01-01T00:00:00Z"
                pods.append((cluster.api.put(PODS, manifest), ranks, rank))
        cluster.give(pods)
        names = [f"job-{number}" for number in range(jobs)]
        while any(cluster.status(cluster.plays[JobKey("team", n)]).get("protection") != "protected" for n in names):
            assert time.monotonic() - began_s < READY_S, Counter(
                (cluster.status(p).get("protection"), cluster.status(p).get("protectionReason", "")[:80])
                for p in cluster.plays.values()
            ).most_common(5)
            await asyncio.sleep(0.5)
        ready_s = time.monotonic() - began_s
        await asyncio.sleep(5.0)
        while not heard.empty():
            heard.get_nowait()
        turns: list[float] = []
        watching = asyncio.create_task(longest_turns(turns))
        cluster.api.calls.clear()
        then_s, cpu_s = time.monotonic(), sum(own.cpu_times()[:2])
        await asyncio.sleep(seconds)
        calm_s, calm_cpu_s = time.monotonic() - then_s, sum(own.cpu_times()[:2]) - cpu_s
        calls = Counter(f"{verb} {kind}" for verb, kind, _ in cluster.api.calls)
        calm_turns, turns[:] = list(turns), []
        decided: list[float] = []
        outcomes = Counter[str]()
        then_s, cpu_s = time.monotonic(), sum(own.cpu_times()[:2])
        for name in random.Random(17).sample(names, min(kills, jobs)) if jobs > 1 else names * kills:
            key = JobKey("team", name)
            run = cluster.controller._ledger.runs[key]
            told = len(cluster.outcomes(cluster.plays[key]))
            while not heard.empty():
                heard.get_nowait()  # what another process has said of the loss before this one
            for pipe in cluster.sites:
                pipe.send(("watch", name, step_now() + 3))
            pod = run.core.job.holders[1].partition(":")[0]
            cluster.site_of[pod].send(("kill", pod))
            killed_s = 0.0
            while True:
                what, *said = await asyncio.wait_for(heard.get(), 60.0)
                if what == "killed":
                    killed_s = said[1]
                elif what == "decided" and said[0] == name:
                    decided.append(said[1] - killed_s)
                    break
            outcomes[await cluster.settled(key, told + 1)] += 1
            for pipe in cluster.sites:
                pipe.send(("go on", name))
        kill_s, kill_cpu_s = time.monotonic() - then_s, sum(own.cpu_times()[:2]) - cpu_s
        watching.cancel()
        status = json.dumps(cluster.status(cluster.plays[JobKey("team", "job-0")]))
        result = {
            "jobs": jobs,
            "ranks": ranks,
            "connections": len(cluster.site_of),
            "ready_s": round(ready_s, 1),
            "decision_s": shares(decided),
            "outcomes": dict(outcomes),
            "loop_s": {"calm": shares(calm_turns), "with_losses": shares(turns)},
            "cores": {"calm": round(calm_cpu_s / calm_s, 3), "with_losses": round(kill_cpu_s / kill_s, 3)},
            "rss_mib": {"empty": round(empty_mib), "now": round(own.memory_info().rss / MIB)},
            "calls_per_s": {what: round(count / calm_s, 2) for what, count in calls.most_common()},
            "status_bytes": len(status),
            "load": os.getloadavg()[0],
        }
        for pipe in cluster.sites:
            loop.remove_reader(pipe.fileno())
            pipe.send(None)
        for child in children:
            child.join(5)
            child.kill()
        return result


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--jobs", type=int, default=1000)
    parser.add_argument("--ranks", type=int, default=8)
    parser.add_argument("--kills", type=int, default=100)
    parser.add_argument("--seconds", type=float, default=20.0, help="how long all train undisturbed")
    parser.add_argument("--processes", type=int, default=2, help="that play agents")
    args = parser.parse_args()
    print(json.dumps(asyncio.run(measure(args.jobs, args.ranks, args.kills, args.seconds, args.processes)), indent=1))


if __name__ == "__main__":
    main()
