"""What goes wrong in one job stays there: the controller lives, and the next job's migration is made."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest
from support.counting import counted_lines
from support.kube_cluster import STEP, KubeCluster, Play, training_pod

from torchrelay.controller.containment import memory_share
from torchrelay.controller.kube.client.api import (
    EVENTS,
    MIGRATIONS,
    NODES,
    PODS,
    QUARANTINES,
    SPARE_POOLS,
    TRAINING_JOBS,
    Object,
    ObjectKind,
)
from torchrelay.controller.kube.cluster.pods import JobKey
from torchrelay.controller.kube.jobs.run import JobRun
from torchrelay.controller.kube.reconcilers import expiry
from torchrelay.protocol import messages as msg
from torchrelay.protocol.kube import kube_names as kube
from torchrelay.protocol.kube.annotations import PodAnnotations

Test = Callable[[KubeCluster, Play], Coroutine[Any, Any, None]]


def beside_another_job(test: Test) -> None:
    """`test` is given a job that trains; another one does so too, and one of its ranks moves when all is done."""

    async def run() -> None:
        async with KubeCluster.open() as cluster:
            other, ours = cluster.job("other"), cluster.job("llama")
            await cluster.trains(other)
            await cluster.trains(ours)
            await test(cluster, ours)
            await cluster.moves(other)
            assert not cluster.task.done()

    asyncio.run(run())


def events_of(cluster: KubeCluster, play: Play) -> list[tuple[str, str]]:
    ours = (e for e in cluster.api.all(EVENTS) if e["involvedObject"]["name"] == play.key.name)
    return [(e["reason"], e["message"]) for e in ours]


def test_an_annotation_that_names_no_container_ends_nothing() -> None:
    async def test(cluster: KubeCluster, ours: Play) -> None:
        newest = cluster.api.named(PODS, "llama-1")
        newest["metadata"]["annotations"]["torchrelay.dev/container"] = "foo"
        newest["metadata"]["creationTimestamp"] = "2027-01-01T00:00:00Z"
        cluster.api.put(PODS, newest)
        spare = ours.agents[-1]
        cluster.api.remove(PODS, spare.pod.name)
        pool = cluster.api.named(SPARE_POOLS, "llama")
        await cluster.until(lambda: "no training container" in pool["status"].get("trouble", ""))

    beside_another_job(test)


def test_a_planned_move_of_a_rank_that_says_absurd_things_harms_nobody_else() -> None:
    async def test(cluster: KubeCluster, ours: Play) -> None:
        for agent in ours.agents:
            agent.mute = True
        wish = cluster._wish(ours, 0)
        assign = await ours.agents[-1].heard_of(msg.Assign)
        ours.agents[1].say(msg.Standing(assign.generation, 7, 7, "after", "", "h", 1))
        ours.agents[1].say(msg.Standing(assign.generation, 1 << 62, -9, "upside down", "", "h", 1 << 30))
        ours.agents[1].say(msg.QuiesceAnswer(0, False, 0))
        assert wish

    beside_another_job(test)


def test_a_job_whose_agents_say_more_than_its_share_of_memory_is_unprotected_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(memory_share, "BUDGET_BYTES", 2 << 20)
    monkeypatch.setattr(memory_share, "BUDGET_BYTES_PER_AGENT", 0)
    monkeypatch.setattr(memory_share, "LOOK_EVERY_BYTES", 1 << 20)

    async def test(cluster: KubeCluster, ours: Play) -> None:
        for number in range(24):
            paths = {f"{number}.{path}": "ab" * 32 for path in range(4000)}
            ours.agents[0].say(msg.ReplicaCheck(STEP + number, paths))
        await cluster.until(lambda: "more than 2 MiB" in cluster.status(ours).get("protectionReason", ""))
        assert cluster.status(ours)["protection"] == "unprotected"

    beside_another_job(test)


def test_a_fault_of_ours_makes_its_job_unprotected_with_an_event_and_a_traceback(caplog: Any) -> None:
    async def test(cluster: KubeCluster, ours: Play) -> None:
        run = cluster.controller._ledger.runs[ours.key]

        def broken(*_: Any) -> None:
            raise KeyError("a bug")

        run.core._settling.settle = broken  # type: ignore[method-assign]  # a bug, for this test
        await cluster.until(lambda: cluster.status(ours).get("protection") == "unprotected")
        assert "KeyError" in cluster.status(ours)["protectionReason"]
        await cluster.until(lambda: any(r == "Unprotected" and "KeyError" in m for r, m in events_of(cluster, ours)))
        ours.agents[0].die()
        stop = await ours.agents[1].heard_of(msg.StopJob)
        assert (stop.exit_code, "as with torchrun" in stop.reason) == (137, True)

    beside_another_job(test)
    assert "Traceback" in caplog.text
    assert "a bug" in caplog.text


def test_a_fault_while_a_job_is_looked_after_stays_with_it(caplog: Any) -> None:
    async def test(cluster: KubeCluster, ours: Play) -> None:
        tend = cluster.controller._keeper.tend

        async def broken(run: Any) -> None:
            if run.key == ours.key:
                raise ZeroDivisionError("a bug")
            await tend(run)

        cluster.controller._keeper.tend = broken  # type: ignore[method-assign]  # a bug, for this test
        await cluster.until(lambda: "ZeroDivisionError" in cluster.status(ours).get("protectionReason", ""))

    beside_another_job(test)
    assert "Traceback" in caplog.text


def odd(*_: Any) -> Any:
    raise ZeroDivisionError("a bug")


class Odd:
    def __bool__(self) -> bool:
        return bool(odd())


def at_an_orphan(cluster: KubeCluster, ours: Play, run: Any) -> None:
    """A migration that an earlier controller began."""
    run.story.orphaned = odd
    meta = {"name": "llama-orphan", "namespace": "team", "annotations": {kube.ORIGIN: kube.BY_CONTROLLER}}
    begun = {"startedAt": "2026-01-01T00:00:00Z"}
    cluster.api.put(MIGRATIONS, {"metadata": meta, "spec": {"job": "llama", "rank": 0}, "status": begun})


def at_a_wish(cluster: KubeCluster, ours: Play, run: Any) -> None:
    run.migrate = odd
    cluster._wish(ours, 0)


def at_its_pace(cluster: KubeCluster, ours: Play, run: Any) -> None:
    run.relay.pace = odd


def at_forgetting(cluster: KubeCluster, ours: Play, run: Any) -> None:
    run.holds_off = Odd()


def at_a_pod_that_leaves(cluster: KubeCluster, ours: Play, run: Any) -> None:
    run.pod_deleted = odd
    cluster.api.remove(PODS, ours.agents[-1].pod.name)


def at_a_pod_that_is_gone(cluster: KubeCluster, ours: Play, run: Any) -> None:
    run.relay.lose = odd
    cluster.api.remove(PODS, ours.agents[-1].pod.name)


def at_its_pool(cluster: KubeCluster, ours: Play, run: Any) -> None:
    pool = cluster.api.named(SPARE_POOLS, "llama")
    cluster.controller.ledger.pools = _OddPools(cluster.controller.ledger.pools)
    cluster.api.put(SPARE_POOLS, pool)


class _OddPools(dict[JobKey, Any]):
    def __setitem__(self, key: JobKey, pool: Any) -> None:
        if key.name == "llama":
            odd()
        super().__setitem__(key, pool)


@pytest.mark.parametrize(
    "at",
    [
        at_an_orphan,
        at_a_wish,
        at_its_pace,
        at_forgetting,
        at_a_pod_that_leaves,
        at_a_pod_that_is_gone,
        at_its_pool,
    ],
)
def test_wherever_a_fault_of_ours_is_its_job_alone_is_unprotected(
    caplog: pytest.LogCaptureFixture, at: Callable[[KubeCluster, Play, Any], None]
) -> None:
    async def test(cluster: KubeCluster, ours: Play) -> None:
        at(cluster, ours, cluster.controller.ledger.runs[ours.key])
        await cluster.until(lambda: "ZeroDivisionError" in cluster.status(ours).get("protectionReason", ""))
        assert cluster.status(ours)["protection"] == "unprotected"

    beside_another_job(test)
    assert "Traceback" in caplog.text


def test_an_earlier_run_that_cannot_be_forgotten_harms_nobody(caplog: pytest.LogCaptureFixture) -> None:
    async def test(cluster: KubeCluster, ours: Play) -> None:
        earlier = JobRun(ours.key, ours.size, ours.launch, PodAnnotations())
        earlier.story.kube_events = Odd()  # type: ignore[assignment]  # a bug, for this test
        cluster.controller.ledger.over.append(earlier)
        await cluster.until(lambda: "ZeroDivisionError" in earlier.failure)
        earlier.task.cancel()

    beside_another_job(test)
    assert "Traceback" in caplog.text


ODD_OBJECTS: dict[str, tuple[ObjectKind, Object]] = {
    "a pod without a spec": (PODS, {"metadata": {"namespace": "team", "labels": {kube.JOB: "llama"}}, "spec": 7}),
    "a wish for no job": (MIGRATIONS, {"metadata": {"namespace": "team"}, "spec": {"rank": 0}}),
    "a node with a taint without a key": (NODES, {"metadata": {}, "spec": {"taints": [{}]}}),
    "a quarantine until a number": (QUARANTINES, {"metadata": {}, "spec": {"node": "n7", "until": 7}}),
    "a job that ended at a number": (
        TRAINING_JOBS,
        {"metadata": {"namespace": "team"}, "spec": {}, "status": {"finishedAt": 7}},
    ),
    "a pool without a namespace": (SPARE_POOLS, {"metadata": {}, "spec": {}}),
}


@pytest.mark.parametrize("what", ODD_OBJECTS)
def test_an_object_that_cannot_be_read_is_left_out_and_said(caplog: pytest.LogCaptureFixture, what: str) -> None:
    kind, manifest = ODD_OBJECTS[what]

    async def test(cluster: KubeCluster, ours: Play) -> None:
        before = len(caplog.records)
        manifest["metadata"]["name"] = "odd"
        cluster.api.put(kind, manifest)
        await cluster.until(lambda: any("left out" in r.getMessage() for r in caplog.records[before:]))
        assert cluster.status(ours)["protection"] == "protected"

    beside_another_job(test)


def test_an_ended_job_that_cannot_be_removed_keeps_no_other_one(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(expiry, "LOOK_S", 0.05)

    async def test(cluster: KubeCluster, ours: Play) -> None:
        delete = cluster.api.delete

        async def broken(kind: ObjectKind, name: str, *rest: Any, **more: Any) -> None:
            if name == "old-a":
                odd()
            await delete(kind, name, *rest, **more)

        monkeypatch.setattr(cluster.api, "delete", broken)
        ended = {"phase": "Succeeded", "finishedAt": "2020-01-01T00:00:00Z"}
        for name in ("old-a", "old-b"):
            meta = {"name": name, "namespace": "team"}
            cluster.api.put(TRAINING_JOBS, {"metadata": meta, "spec": {}, "status": ended})
        await cluster.until(
            lambda: {j["metadata"]["name"] for j in cluster.api.all(TRAINING_JOBS)}.isdisjoint({"old-b"})
        )
        assert cluster.api.named(TRAINING_JOBS, "old-a")

    beside_another_job(test)
    said = [r for r in caplog.records if "old-a: its TrainingJob is not removed: ZeroDivisionError" in r.getMessage()]
    assert len(said) == 1, "it is said once"
    assert said[0].exc_info


def test_an_api_server_that_does_not_answer_for_one_job_holds_up_no_other() -> None:
    async def test(cluster: KubeCluster, ours: Play) -> None:
        tend = cluster.controller._keeper.tend

        async def stuck(run: Any) -> None:
            if run.key == ours.key:
                await asyncio.Event().wait()
            await tend(run)

        cluster.controller._keeper.tend = stuck  # type: ignore[method-assign]  # for this test

    beside_another_job(test)


def test_a_pod_that_claims_ten_thousand_ranks_does_not_stop_the_loop() -> None:
    async def run() -> None:
        async with KubeCluster.open() as cluster:
            other = cluster.job("other")
            await cluster.trains(other)
            claims = cluster.plays[JobKey("team", "huge")] = Play(JobKey("team", "huge"), 10_000)
            for size, pods in ((10_000, 40), (1 << 40, 1), (10_001, 39)):
                launch = {**claims.launch, "WORLD_SIZE": str(size)}
                first, *_ = [cluster.add(training_pod(JobKey("team", f"huge-{size}"), n, pods)) for n in range(pods)]
                cluster.agent(claims, first, 0, launch)
            assert 10_000 < await longest_turn_lines(cluster, 3.0) < 300_000  # a few for each rank
            assert {key.name for key in cluster.controller._ledger.runs} == {"other", "huge-10000"}
            await cluster.moves(other)

    asyncio.run(run())


async def longest_turn_lines(cluster: KubeCluster, for_s: float) -> int:
    """Return how many lines of Python the loop runs at most without coming round: the same on a busy machine."""
    loop = asyncio.get_running_loop()
    until_s, longest = loop.time() + for_s, 0
    while loop.time() < until_s:
        with counted_lines() as lines:
            await asyncio.sleep(0)
        longest = max(longest, lines.count)
        assert not cluster.task.done()
    return longest


def test_nothing_is_kept_of_a_job_that_is_gone() -> None:
    async def run() -> None:
        async with KubeCluster.open() as cluster:
            job = cluster.job("llama")
            await cluster.trains(job)
            keeper = cluster.controller._keeper
            assert job.key in keeper._templates
            for pod in cluster.api.all(PODS):
                cluster.api.remove(PODS, pod["metadata"]["name"])
            await cluster.until(lambda: job.key not in cluster.controller._ledger.runs)
            await cluster.until(lambda: job.key not in keeper._templates and job.key not in keeper._said)

    asyncio.run(run())
