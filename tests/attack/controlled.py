"""The process that is attacked: the controller of a cluster on its TLS ports, with an API in memory, and jobs that train honestly.

It is told what to do by lines of JSON on its standard input, and answers each with one line.
"""

from __future__ import annotations

import asyncio
import ctypes
import gc
import json
import logging
import os
import sys
import time
from collections import Counter, deque
from collections.abc import Mapping
from typing import Any

from support.fake_kube import FakeApi
from support.footprint import footprint
from support.kube_cluster import KubeCluster, Play, training_pod
from support.token_review import review_of

from torchrelay.controller.decide.migration.stand import Cannot, Target
from torchrelay.controller.execution import targets
from torchrelay.controller.kube.client.api import (
    MIGRATIONS,
    PODS,
    SPARE_POOLS,
    TOKEN_REVIEWS,
    TRAINING_JOBS,
    Object,
    ObjectKind,
)
from torchrelay.controller.kube.cluster.pods import JobKey, read_pod
from torchrelay.controller.kube.readiness import serve_readiness
from torchrelay.protocol.errors import RefusedError
from torchrelay.protocol.kube import kube_names as kube
from torchrelay.protocol.messages import Standing
from torchrelay.protocol.names import NO_RANK

SAMPLE_S = 0.05
MOVE_S = 60.0


class ReviewingApi(FakeApi):
    """Knows whose a token is: `pod NAMESPACE NAME UID` is that pod's."""

    async def create(self, kind: ObjectKind, manifest: Object) -> Object:
        if kind is not TOKEN_REVIEWS:
            return await super().create(kind, manifest)
        words = str(manifest["spec"]["token"]).split()
        if len(words) != 4 or words[0] != "pod":
            return {"status": {"authenticated": False}}
        return review_of(words[2], words[3], words[1])


class Cluster(KubeCluster):
    """Agents of pods that are deleted end, as the kubelet would have it, and nothing of the stand-ins grows."""

    api_of_kind = ReviewingApi

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        self.api.calls = deque(maxlen=100)  # type: ignore[assignment]  # a test's list of what was asked
        self.failed: list[str] = []
        self.moved, self.slowest_s, self.peak_bytes = 0, 0.0, 0

    async def _run_spares(self) -> None:
        async for what, manifest in self.api.watch(PODS, ""):
            meta = manifest["metadata"]
            play = self.plays.get(JobKey(meta["namespace"], meta["labels"][kube.JOB]))
            if play is None:
                continue
            if what == "DELETED":
                gone = [agent for agent in play.agents if agent.pod.uid == meta["uid"]]
                for agent in gone:
                    agent.task.cancel()
                    play.agents.remove(agent)
                    self._agents.remove(agent)
            elif what == "ADDED" and meta["labels"].get(kube.ROLE) == kube.SPARE:
                pod = read_pod(manifest)
                assert pod is not None
                self.agent(play, pod, NO_RANK, {})

    async def keep_moving(self, play: Play) -> None:
        """One planned move after the other; each has to be fulfilled."""
        await self.trains(play)
        while True:
            wish = self._wish(play, self.moved % play.size)
            began_s = time.monotonic()
            try:
                await asyncio.wait_for(self.done(play, wish, MOVE_S), MOVE_S)
            except (AssertionError, asyncio.TimeoutError) as e:
                self.failed.append(
                    f"a move of {play.key} after {time.monotonic() - began_s:.1f} s: {type(e).__name__}: {e}"
                )
                return
            self.slowest_s = max(self.slowest_s, time.monotonic() - began_s)
            self.moved += 1
            self.api.remove(MIGRATIONS, wish, play.key.namespace)
            for made in self.api.all(MIGRATIONS):
                if made["spec"]["job"] == play.key.name and (made.get("status") or {}).get("outcome"):
                    self.api.remove(MIGRATIONS, made["metadata"]["name"], play.key.namespace)

    async def sample(self) -> None:
        while True:
            held = footprint(os.getpid())
            self.peak_bytes = max(self.peak_bytes, held.anonymous_bytes if held is not None else 0)
            await asyncio.sleep(SAMPLE_S)


class Faults(logging.Handler):
    """Of ours that were contained: each is to be mended all the same."""

    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self.seen: Counter[str] = Counter()

    def emit(self, record: logging.LogRecord) -> None:
        if record.exc_info and isinstance(record.exc_info[1], RefusedError):
            return  # its agents have gone too far, as they were meant to
        where = ""
        if record.exc_info and (trace := record.exc_info[2]) is not None:
            while trace.tb_next is not None:
                trace = trace.tb_next
            where = f" [{trace.tb_frame.f_code.co_filename.rpartition('/')[2]}:{trace.tb_lineno}]"
        self.seen[record.getMessage()[:300] + where] += 1


class Decisions:
    """On ranks that stand where the controller has decided how a migration goes on."""

    def __init__(self) -> None:
        self.on: Counter[str] = Counter()
        self._decide = targets.decide_target

    def decide(self, standings: Mapping[int, Standing]) -> Target | Cannot:
        self.on.update({s.position for s in standings.values()})
        return self._decide(standings)


class Orders:
    """What the attacker may ask for: what a user of the cluster could do, and how the controller is."""

    def __init__(self, cluster: Cluster, faults: Faults, decisions: Decisions) -> None:
        self._cluster, self._faults, self._decisions = cluster, faults, decisions

    async def answer(self, asked: dict[str, Any]) -> Any:
        return await getattr(self, asked.pop("do"))(**asked)

    async def pods(self, job: str, size: int, annotations: dict[str, str]) -> list[dict[str, Any]]:
        """Makes a job's pods, whose agents the attacker plays."""
        key = JobKey("attacked", job)
        made = [self._cluster.add(training_pod(key, rank, size, **annotations)) for rank in range(size)]
        return [{"name": pod.name, "uid": pod.uid} for pod in made]

    async def look(self, job: str) -> dict[str, Any]:
        """Its pods, spares among them, what is said of it, and what has become of wishes."""
        cluster, key = self._cluster, JobKey("attacked", job)
        pods = [p for p in cluster.api.all(PODS) if p["metadata"]["labels"][kube.JOB] == job]
        run = cluster.controller._ledger.runs.get(key)
        return {
            "pods": [
                {
                    "name": p["metadata"]["name"],
                    "uid": p["metadata"]["uid"],
                    "spare": p["metadata"]["labels"].get(kube.ROLE) == kube.SPARE,
                }
                for p in pods
            ],
            "status": {k: v for k, v in cluster.status(Play(key, 0)).items() if k != "ranks"},
            "failure": run.failure if run is not None else "",
            "decided_on": dict(self._decisions.on),
            "phase": run.core.driver.phase.value if run is not None else "",
        }

    async def wish(self, job: str, rank: int) -> str:
        return self._cluster._wish(Play(JobKey("attacked", job), 0), rank)

    async def save(self, job: str) -> None:
        """As who makes a Migration that moves nobody."""
        meta = {"generateName": "save-", "namespace": "attacked"}
        self._cluster.api.put(MIGRATIONS, {"metadata": meta, "spec": {"job": job, "save": True}})

    async def outcomes(self, job: str) -> list[str]:
        return self._cluster.outcomes(Play(JobKey("attacked", job), 0))

    async def remove(self, job: str) -> None:
        """As `kubectl delete`: the job's pods, and its Migrations."""
        for pod in self._cluster.api.all(PODS):
            if pod["metadata"]["labels"][kube.JOB] == job:
                self._cluster.api.remove(PODS, pod["metadata"]["name"], "attacked")
        for kind in (MIGRATIONS, TRAINING_JOBS, SPARE_POOLS):
            for made in self._cluster.api.all(kind):
                if job in (made["metadata"]["name"], made.get("spec", {}).get("job")):
                    self._cluster.api.remove(kind, made["metadata"]["name"], "attacked")

    async def state(self) -> dict[str, Any]:
        cluster = self._cluster
        gc.collect()
        ctypes.CDLL(None).malloc_trim(0)  # what is free is no leak
        held = footprint(os.getpid())
        assert held is not None
        peak_bytes, cluster.peak_bytes = cluster.peak_bytes, held.anonymous_bytes
        return {
            "lives": not cluster.task.done(),
            "ended": repr(cluster.task) if cluster.task.done() else "",
            "bytes": held.anonymous_bytes,
            "peak_bytes": peak_bytes,
            "descriptors": held.descriptors,
            "threads": held.threads,
            "tasks": len(asyncio.all_tasks()),
            "jobs": len(cluster.controller._ledger.runs) + len(cluster.controller._ledger.over),
            "moved": cluster.moved,
            "slowest_s": round(cluster.slowest_s, 2),
            "failed": cluster.failed,
            "still_s": cluster.pulse.still_s(),
            "faults": dict(self._faults.seen),
        }


async def main() -> None:
    faults = Faults()
    logging.getLogger().addHandler(faults)
    async with Cluster.open() as cluster:
        assert isinstance(cluster, Cluster)
        reader = asyncio.StreamReader()
        await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
        honest = cluster.job("honest")
        await cluster.trains(honest)
        decisions = Decisions()
        targets.decide_target = decisions.decide
        orders = Orders(cluster, faults, decisions)
        async with await serve_readiness(cluster.settings, cluster.pulse):
            tasks = [asyncio.create_task(cluster.keep_moving(honest)), asyncio.create_task(cluster.sample())]
            say(
                {
                    "relay": cluster.settings.relay_port,
                    "enrol": cluster.settings.enrol_port,
                    "ready": cluster.settings.ready_port,
                }
            )
            while line := await reader.readline():
                say(await orders.answer(json.loads(line)))
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)


def say(answer: Any) -> None:
    sys.stdout.write(json.dumps(answer) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    logging.basicConfig(level=logging.WARNING, stream=sys.stderr)
    asyncio.run(main())
