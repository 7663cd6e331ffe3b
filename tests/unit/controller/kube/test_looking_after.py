"""One job in a cluster whose API is in memory: its resources, its spares, wishes for moves, and what is left behind."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Coroutine
from typing import Any

import pytest
from support.fake_kube import FakeApi

from torchrelay.controller.kube.api import MIGRATIONS, PODS, SPARE_POOLS, TRAINING_JOBS
from torchrelay.controller.kube.keeper import Keeper
from torchrelay.controller.kube.ledger import Ledger
from torchrelay.controller.kube.pods import JobKey, Pod, read_pod
from torchrelay.controller.kube.run import JobRun
from torchrelay.controller.kube.scribe import Scribe, without_empty
from torchrelay.controller.kube.story import Left
from torchrelay.controller.kube.wishes import Wishes
from torchrelay.protocol import events as e
from torchrelay.protocol import messages as msg
from torchrelay.protocol.errors import RefusedError, RetryableError
from torchrelay.protocol.kube_annotations import Wishes as Asked
from torchrelay.protocol.names import NO_RANK
from torchrelay.protocol.pod_tls import PodIdentity

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


class World:
    def __init__(self) -> None:
        self.api = FakeApi()
        self.ledger = Ledger(self._find, self._remember)
        self.scribe = Scribe(self.api, self.ledger)  # type: ignore[arg-type]
        self.keeper = Keeper(self.api, self.ledger, self.scribe)  # type: ignore[arg-type]
        self.wishes = Wishes(self.ledger)
        self.remembered: dict[int, str] = {}
        for rank in range(2):
            self.add(manifest(f"llama-{rank}"))
        self.run = self.ledger.runs[KEY] = JobRun(KEY, 2, LAUNCH, Asked())

    async def _find(self, identity: PodIdentity) -> Pod | None:
        found = await self.api.get(PODS, identity.pod, identity.namespace)
        return read_pod(found) if found is not None else None

    async def _remember(self, key: JobKey) -> dict[int, str]:
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


def test_a_job_gets_its_resource_its_pool_and_one_spare_and_no_second_one() -> None:
    async def test(w: World) -> None:
        w.begin()
        await w.keeper.tend(w.run)
        await w.keeper.tend(w.run)
        assert w.api.named(TRAINING_JOBS, "llama")["spec"]["spares"] == 1
        pool = w.api.named(SPARE_POOLS, "llama")
        assert (pool["spec"], pool["status"]) == ({"job": "llama", "spares": 1}, {"wanted": 1, "ready": 1, "warm": 0})
        (spare,) = w.spares()
        assert (
            spare.manifest["metadata"]["ownerReferences"][0]["uid"]
            == w.api.named(TRAINING_JOBS, "llama")["metadata"]["uid"]
        )
        assert w.run.core.job.spares_coming == 1

    in_world(test)


def test_the_number_in_the_pool_is_followed() -> None:
    async def test(w: World) -> None:
        w.begin()
        await w.keeper.tend(w.run)
        w.api.named(SPARE_POOLS, "llama")["spec"]["spares"] = 3
        await w.keeper.tend(w.run)
        assert len(w.spares()) == 3
        w.api.named(SPARE_POOLS, "llama")["spec"]["spares"] = 0
        await w.keeper.tend(w.run)
        assert [o for o in w.api.all(PODS) if "spare" in o["metadata"]["name"]] == []

    in_world(test)


def test_a_pool_that_is_named_and_is_not_there_gives_no_spares() -> None:
    async def test(w: World) -> None:
        for pod in w.ledger.pods_of(KEY):
            pod.annotations["torchrelay.dev/spares"] = "gold"
        w.begin()
        await w.keeper.tend(w.run)
        assert w.spares() == []

    in_world(test)


@pytest.mark.parametrize(("planned", "is_there"), [(True, False), (False, True)])
def test_a_pod_that_was_left_is_deleted_if_that_was_planned(planned: bool, is_there: bool) -> None:
    async def test(w: World) -> None:
        w.begin()
        w.run.core.take()
        agent = w.pod("llama-1").agent
        w.run.story.left.append(Left(f"{agent}.1", 1, planned, "why"))
        await w.keeper.tend(w.run)
        assert w.run.story.left == []
        assert bool([o for o in w.api.all(PODS) if o["metadata"]["name"] == "llama-1"]) is is_there

    in_world(test)


def test_a_pod_of_the_same_name_that_came_later_is_left_alone() -> None:
    async def test(w: World) -> None:
        w.begin()
        w.run.story.left.append(Left("llama-1:00000000.1", 1, True, "why"))
        await w.keeper.tend(w.run)
        assert w.run.story.left == []
        assert [o for o in w.api.all(PODS) if o["metadata"]["name"] == "llama-1"]

    in_world(test)


def test_what_could_not_be_written_is_written_when_the_api_server_is_back() -> None:
    async def test(w: World) -> None:
        w.begin()
        await w.keeper.tend(w.run)
        started = e.MigrationStarted("m1", "unplanned", 1, "killed", 1)
        w.run.story.take(e.to_job_event(started, 1000.0))
        w.api.away = True
        with pytest.raises(RetryableError):
            await w.scribe.write(w.run)
        w.api.away = False
        await w.scribe.write(w.run)
        (migration,) = w.api.all(MIGRATIONS)
        assert (migration["spec"]["rank"], migration["status"]["reason"]) == (1, "killed")
        assert migration["metadata"]["ownerReferences"][0]["name"] == "llama"
        assert w.api.named(TRAINING_JOBS, "llama")["status"]["phase"] == "Migrating"

    in_world(test)


def wish(**spec: Any) -> dict[str, Any]:
    meta = {"name": "wish", "namespace": "team", "uid": "w-1"}
    return {"metadata": meta, "spec": {"job": "llama", **spec}}


def test_a_wish_that_never_can_be_is_refused_with_the_reason() -> None:
    async def test(w: World) -> None:
        w.begin()
        w.wishes.changed(wish(pod="llama-9"), False)
        w.wishes.tick()
        (story,) = w.run.story.migrations
        assert (story.name, story.status["outcome"]) == ("wish", "refused")
        assert "llama-9" in story.status["reason"]

    in_world(test)


def test_a_wish_that_cannot_be_now_waits() -> None:
    async def test(w: World) -> None:
        w.begin()
        spare = w.add(manifest("llama-spare-2"))
        w.run.core.attach(w.hello(spare, NO_RANK), 1.0)
        w.wishes.changed(wish(node="n1"), False)
        w.wishes.tick()
        assert w.run.story.migrations == []
        assert "not reached their training loop" in w.wishes.waiting["wish"]

    in_world(test)


def test_a_migration_that_the_controller_made_is_no_wish() -> None:
    async def test(w: World) -> None:
        w.begin()
        own = wish(rank=7)
        own["metadata"]["annotations"] = {"torchrelay.dev/origin": "controller"}
        w.wishes.changed(own, False)
        w.wishes.tick()
        assert w.run.story.migrations == []

    in_world(test)


def test_a_job_whose_pods_are_all_deleted_is_over() -> None:
    async def test(w: World) -> None:
        w.begin()
        w.run.pod_deleted(w.pod("llama-0").agent, False, 5.0)
        assert not w.run.is_over
        w.run.pod_deleted(w.pod("llama-1").agent, False, 6.0)
        assert w.run.is_over
        assert w.run.core.ended is not None
        assert "so was the job" in w.run.core.ended.reason

    in_world(test)


def test_a_pod_finds_its_job_and_an_alien_does_not() -> None:
    async def test(w: World) -> None:
        pod = w.pod("llama-1")
        identity = PodIdentity("team", "llama-1", pod.uid)
        assert await w.ledger.run_for(identity, w.hello(pod, 1)) is w.run
        for other in (
            PodIdentity("other", "llama-1", pod.uid),
            PodIdentity("team", "llama-1", "u"),
            PodIdentity("team", "x", "u"),
        ):
            with pytest.raises(RefusedError):
                await w.ledger.run_for(other, w.hello(pod, 1))

    in_world(test)


def test_after_the_end_a_rank_begins_a_new_run_and_a_spare_waits_for_one() -> None:
    async def test(w: World) -> None:
        w.begin()
        w.run.core.end_job(1, "over")
        late = w.add(manifest("llama-3"))
        identity = PodIdentity("team", "llama-3", late.uid)
        with pytest.raises(RetryableError):
            await w.ledger.run_for(identity, w.hello(late, NO_RANK))
        run = await w.ledger.run_for(identity, w.hello(late, 0))
        assert run is not w.run
        assert w.ledger.over == [w.run]

    in_world(test)


def test_an_empty_text_is_taken_away_and_not_sent() -> None:
    assert without_empty({"a": "", "b": "x", "c": [{"d": "", "e": 0}], "f": {"g": ""}}) == {
        "a": None,
        "b": "x",
        "c": [{"e": 0}],
        "f": {},
    }
