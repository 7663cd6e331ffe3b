"""What many jobs, or one large one, cost the controller of a cluster: its own process, agents connected over gRPC with TLS.

Prints one JSON object. `decision_s`: from the moment at which a process is killed (its agent says so) to the one at which the
first survivor has been told to leave its communicators, as the agents' processes see it: the median, the 99 % share, the longest.
`in_controller_s`: the part of it from where the controller has the word to where it hands the order over to the connection; the
rest is the agents' processes, the network, and waiting for a processor or the loop.
`loop_s`: for how long the controller's loop stood still. `cores`, `rss_mib`: of the controller's process, without anything
beside it; the API is in memory there and counts as its cost (`of_the_api`: its objects). `calls_per_s`: what it asked of the API
while all trained.
Agents are played by other processes: each has its own connection and certificate, and tells as often as the controller asks how
far its processes are. `--in-pod`: how many ranks each pod has, and so each connection.
"""

import argparse
import asyncio
import itertools
import json
import multiprocessing
import os
import random
import sys
import time
from collections import Counter
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

os.environ.setdefault("GRPC_VERBOSITY", "NONE")
sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

import psutil
from played_agents import PlayedPod, play, step_now
from support.kube_cluster import KubeCluster, Play, training_pod

from torchrelay.controller.containment.memory_share import size_of
from torchrelay.controller.kube.client.api import PODS
from torchrelay.controller.kube.cluster.pods import JobKey
from torchrelay.controller.serving import relay, service
from torchrelay.protocol import messages as msg
from torchrelay.protocol.kube import kube_names as kube
from torchrelay.protocol.names import NO_RANK
from torchrelay.protocol.transport.telling import MOST_TELL_S

MIB = 1 << 20
READY_S, SETTLED_S, TELL_EVERY_S = 900.0, 120.0, 20.0
MANY_PODS = 400
"""Of more, agents tell as rarely as a controller may ask them to until all are connected: else the telling takes the processors
that the connecting needs, where these are shared."""


class Cluster(KubeCluster):
    """A cluster in which other processes play all pods, also those of spares."""

    in_pod = 1
    """Processes in each pod."""

    def __init__(self, **settings: Any) -> None:
        self.sites: list[Connection] = []
        self.site_of: dict[str, Connection] = {}
        """By pod."""
        self._places = itertools.count()
        super().__init__(**settings)

    async def _run_spares(self) -> None:
        async for what, manifest in self.api.watch(PODS, ""):
            meta = manifest["metadata"]
            labels, site = meta["labels"], self.site_of.get(meta["name"])
            if what == "DELETED" and site is not None:
                site.send(("end", meta["name"]))  # as the kubelet does
            if what == "ADDED" and labels.get(kube.ROLE) == kube.SPARE:
                key = JobKey(meta["namespace"], labels[kube.JOB])
                self.give([PlayedPod(manifest, self.plays[key].size, NO_RANK, self.in_pod)])

    async def settled(self, key: JobKey, count: int) -> str:
        """Wait for the job's `count`th migration, and then for a warm spare. Return the outcome of the latest migration."""
        job = self.plays[key]
        await self.until(lambda: len(self.outcomes(job)) >= count, SETTLED_S)
        await self.until(lambda: self.status(job).get("sparesWarm", 0) >= 1, SETTLED_S)
        return self.outcomes(job)[-1]

    def give(self, pods: list[PlayedPod]) -> None:
        """Give pods to the other processes to play."""
        parts: list[list[PlayedPod]] = [[] for _ in self.sites]
        for pod in pods:
            place = next(self._places) % len(self.sites)
            parts[place].append(pod)
            self.site_of[pod.manifest["metadata"]["name"]] = self.sites[place]
        for site, part in zip(self.sites, parts):
            site.send(("add", part))


class OwnTimes:
    """When the controller has heard of a process's end, and when it has first told anybody of it to leave its communicators."""

    def __init__(self) -> None:
        self._heard_s: dict[str, float] = {}
        self.took_s: list[float] = []

    def watch(self) -> None:
        """Look at each message that comes in, and at each order that goes out."""
        read, write = relay.received, service.wrap

        def received(packed: Any) -> Any:
            message = read(packed)
            if isinstance(message, msg.WorkerExited) and not message.fenced:
                self._heard_s[job_of(message.worker)] = time.monotonic()
            return message

        def wrap(kind: Any, order: Any) -> Any:
            packed = write(kind, order)
            if isinstance(order, msg.ToWorker) and isinstance(order.order, msg.Interrupt):
                heard_s = self._heard_s.pop(job_of(order.worker), None)
                if heard_s is not None:
                    self.took_s.append(time.monotonic() - heard_s)
            return packed

        relay.received, service.wrap = received, wrap


def job_of(worker: str) -> str:
    """Return the job in the name of its process: pods are called JOB-NUMBER, spares' pods JOB-spare-SOMETHING."""
    return "-".join(worker.split("-")[:2])


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


async def measure(jobs: int, ranks: int, in_pod: int, kills: int, seconds: float, processes: int) -> dict[str, Any]:  # noqa: C901 - one measurement from its beginning to its end
    async with Cluster.open() as cluster:
        assert isinstance(cluster, Cluster)
        cluster.in_pod = in_pod
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
            for first in range(0, ranks, in_pod):
                manifest = training_pod(key, first // in_pod, ranks)
                manifest["metadata"]["creationTimestamp"] = "2026-01-01T00:00:00Z"
                pods.append(PlayedPod(cluster.api.put(PODS, manifest), ranks, first, in_pod))
        for pipe in cluster.sites:
            pipe.send(("pace", MOST_TELL_S if len(pods) > MANY_PODS else 0.0))
        cluster.give(pods)
        names = [f"job-{number}" for number in range(jobs)]
        tell_s = began_s + TELL_EVERY_S
        level = "protected" if in_pod < ranks else "partly"  # no other machine has copies of a job's in one pod
        while any(cluster.status(cluster.plays[JobKey("team", n)]).get("protection") != level for n in names):
            assert time.monotonic() - began_s < READY_S, Counter(
                (cluster.status(p).get("protection"), cluster.status(p).get("protectionReason", "")[:80])
                for p in cluster.plays.values()
            ).most_common(5)
            await asyncio.sleep(0.5)
            if time.monotonic() > tell_s:
                tell_s = time.monotonic() + TELL_EVERY_S
                there = sum(len(run.core.job.nodes) for run in cluster.controller.ledger.runs.values())
                cpu_s, rss_mib = sum(own.cpu_times()[:2]), own.memory_info().rss / MIB
                passed_s = time.monotonic() - began_s
                lacking = Counter(
                    (found.get("protection"), found.get("protectionReason", "")[:80])
                    for found in (cluster.status(p) for p in cluster.plays.values())
                    if found.get("protection") != level
                ).most_common(1)
                print(
                    f"{passed_s:.0f} s: {there} connections, {rss_mib:.0f} MiB, {cpu_s:.0f} s of a processor, {lacking}",
                    file=sys.stderr,
                    flush=True,
                )
        ready_s = time.monotonic() - began_s
        print(f"all are protected after {ready_s:.0f} s", file=sys.stderr, flush=True)
        for pipe in cluster.sites:
            pipe.send(("pace", 0.0))
        await asyncio.sleep(2 * MOST_TELL_S)
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
        own_times = OwnTimes()
        own_times.watch()
        decided: list[float] = []
        outcomes = Counter[str]()
        then_s, cpu_s = time.monotonic(), sum(own.cpu_times()[:2])
        for number, name in enumerate(random.Random(17).sample(names, min(kills, jobs)) if jobs > 1 else names * kills):
            key = JobKey("team", name)
            run = cluster.controller._ledger.runs[key]
            told = len(cluster.outcomes(cluster.plays[key]))
            while not heard.empty():
                heard.get_nowait()  # what another process has said of the loss before this one
            for pipe in cluster.sites:
                pipe.send(("watch", name, step_now() + 3))
            for _ in cluster.sites:  # before the loss all ranks have to stand at that step
                while (await asyncio.wait_for(heard.get(), 60.0))[0] != "watching":
                    pass
            worker = run.core.job.holders[(1 + number * in_pod) % ranks]  # each loss of one job on another machine
            cluster.site_of[worker.partition(":")[0]].send(("kill", worker))
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
            "ranks_of_a_pod": in_pod,
            "connections": len(cluster.site_of),
            "ready_s": round(ready_s, 1),
            "decision_s": shares(decided),
            "in_controller_s": shares(own_times.took_s),
            "outcomes": dict(outcomes),
            "loop_s": {"calm": shares(calm_turns), "with_losses": shares(turns)},
            "cores": {"calm": round(calm_cpu_s / calm_s, 3), "with_losses": round(kill_cpu_s / kill_s, 3)},
            "rss_mib": {
                "empty": round(empty_mib),
                "now": round(own.memory_info().rss / MIB),
                "of_the_api": round(size_of([cluster.api.objects], 1 << 40) / MIB),
            },
            "calls_per_s": {what: round(count / calm_s, 2) for what, count in calls.most_common()},
            "status_bytes": len(status),
            "processors": os.cpu_count(),
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
    parser.add_argument("--in-pod", type=int, default=1, help="ranks of each pod, which has one agent")
    parser.add_argument("--kills", type=int, default=100)
    parser.add_argument("--seconds", type=float, default=20.0, help="how long all train undisturbed")
    parser.add_argument("--processes", type=int, default=2, help="that play agents")
    args = parser.parse_args()
    print(
        json.dumps(
            asyncio.run(measure(args.jobs, args.ranks, args.in_pod, args.kills, args.seconds, args.processes)), indent=1
        )
    )


if __name__ == "__main__":
    main()
