"""What becomes of a job's TrainingJob and SparePool: with its workload, after its end, and with the next job of its name."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from support.kube_cluster import KubeCluster
from support.kube_world import KEY, LAUNCH, World, in_world, manifest

from torchrelay.controller.kube.client.api import (
    BUDGETS,
    EVENTS,
    MIGRATIONS,
    PODS,
    SPARE_POOLS,
    TRAINING_JOBS,
    ObjectKind,
)
from torchrelay.controller.kube.jobs.run import JobRun
from torchrelay.controller.kube.reconcilers.expiry import Expiry
from torchrelay.controller.kube.status.losses import Loss, timestamp
from torchrelay.controller.restart.job_restart import RestartPlan
from torchrelay.protocol import events as e
from torchrelay.protocol import messages as msg
from torchrelay.protocol.kube import kube_names as kube
from torchrelay.protocol.kube.annotations import PodAnnotations as Asked
from torchrelay.protocol.security.pod_tls import PodIdentity

JOB = ObjectKind("Job", None)
TTL_S = 100.0
WALL_S = 1_800_000_000.0


def owner(name: str, uid: str) -> dict[str, Any]:
    return {"apiVersion": "batch/v1", "kind": "Job", "name": name, "uid": uid, "controller": True}


def owned(w: World, *uids: str) -> None:
    """The pods of the job are of Jobs with these uids."""
    for uid in uids:
        w.api.put(JOB, {"metadata": {"name": uid, "namespace": "team", "uid": uid}})
    for rank, pod in enumerate(p for p in w.ledger.pods_of(KEY) if not p.is_spare):
        found = w.api.named(PODS, pod.name)
        uid = uids[rank % len(uids)]
        found["metadata"]["ownerReferences"] = [owner(uid, uid)]
        w.add(found)


def there(w: World, *kinds: ObjectKind) -> set[str]:
    return {kind.name for kind in kinds if w.api.all(kind)}


ALL = (TRAINING_JOBS, SPARE_POOLS, MIGRATIONS)


def test_all_that_is_made_for_a_job_goes_with_its_workload() -> None:
    async def test(w: World) -> None:
        owned(w, "job-1")
        w.begin()
        await w.keeper.tend(w.run)
        w.run.story.take(e.to_job_event(e.MigrationStarted("m1", "unplanned", 1, "killed", 1), 1000.0))
        await w.status_writer.write(w.run)
        w.api.collect()
        assert there(w, *ALL) == {kind.name for kind in ALL}
        assert len(w.spares()) == 1
        w.api.remove(JOB, "job-1")
        w.api.collect()
        assert there(w, *ALL, PODS) == set()

    in_world(test)


def test_of_several_workloads_that_end_one_by_one_none_takes_the_others_spares() -> None:
    async def test(w: World) -> None:
        owned(w, "job-1")
        w.begin()
        await w.keeper.tend(w.run)
        owned(w, "job-1", "job-2")
        await w.keeper.tend(w.run)
        for uid in ("job-1", "job-2"):
            w.api.remove(JOB, uid)
        w.api.collect()
        assert there(w, TRAINING_JOBS, SPARE_POOLS) == {"TrainingJob", "SparePool"}
        assert [o for o in w.api.all(PODS) if "-spare-" in o["metadata"]["name"]]

    in_world(test)


def test_a_jobset_is_the_workload_of_its_jobs_pods() -> None:
    async def test(w: World) -> None:
        labels = {"jobset.sigs.k8s.io/jobset-name": "llama", "jobset.sigs.k8s.io/jobset-uid": "set-1"}
        owned(w, "job-1", "job-2")
        for pod in w.ledger.pods_of(KEY):
            found = w.api.named(PODS, pod.name)
            found["metadata"]["labels"] |= labels
            w.add(found)
        w.begin()
        await w.keeper.tend(w.run)
        (reference,) = w.api.named(TRAINING_JOBS, "llama")["metadata"]["ownerReferences"]
        assert reference == {
            "apiVersion": "jobset.x-k8s.io/v1alpha2",
            "kind": "JobSet",
            "name": "llama",
            "uid": "set-1",
        }

    in_world(test)


async def second(w: World) -> JobRun:
    """The first one has ended, and another one of its name begins."""
    w.run.core.end_job(0, "done")
    pod = w.add(manifest("llama-3"))
    return await w.ledger.run_for(PodIdentity("team", "llama-3", pod.uid), w.hello(pod, 0))


def test_a_second_job_of_the_name_has_its_own_number_of_spares_and_no_past() -> None:
    async def test(w: World) -> None:
        w.begin()
        w.run.losses.add(Loss(1, 3, WALL_S, "killed", "next-spare", 1.0, 1))
        await w.keeper.tend(w.run)
        await w.status_writer.write(w.run)
        w.api.named(SPARE_POOLS, "llama")["spec"]["spares"] = 7
        job = w.api.named(TRAINING_JOBS, "llama")
        assert len(job["status"]["losses"]) == 1
        run = await second(w)
        await w.keeper.tend(run)
        await w.status_writer.write(run)
        assert w.api.named(SPARE_POOLS, "llama")["spec"]["spares"] == 1
        assert job["status"]["losses"] == []
        conditions = {c["type"]: c["message"] for c in job["status"]["conditions"]}
        assert conditions.keys() == {"Protected", "Degraded", "SparesReady", "BegunAnew"}
        assert conditions["BegunAnew"] == "the job of this name before it has ended"
        assert "BegunAnew" in [event["reason"] for event in w.api.all(EVENTS)]

    in_world(test)


@pytest.mark.parametrize(
    ("phase", "uid", "spares"),
    [("Succeeded", "job-1", 1), ("Failed", "job-1", 1), ("Running", "job-0", 1), ("Running", "job-1", 7)],
)
def test_a_new_controller_tells_an_earlier_job_from_this_one(phase: str, uid: str, spares: int) -> None:
    async def test(w: World) -> None:
        owned(w, "job-1")
        meta = {"name": "llama", "namespace": "team"}
        w.api.put(
            TRAINING_JOBS, {"metadata": meta, "spec": {"spares": 1, "workloadUID": uid}, "status": {"phase": phase}}
        )
        w.api.put(SPARE_POOLS, {"metadata": meta, "spec": {"job": "llama", "spares": 7}})
        w.begin()
        await w.keeper.tend(w.run)
        assert w.api.named(SPARE_POOLS, "llama")["spec"]["spares"] == spares

    in_world(test)


def test_a_job_that_begins_again_is_the_same_one() -> None:
    async def test(w: World) -> None:
        w.begin()
        await w.keeper.tend(w.run)
        w.api.named(SPARE_POOLS, "llama")["spec"]["spares"] = 2
        run = w.ledger.begin_again(w.run, RestartPlan({}, directory="/x", step=3), "so", "jit-checkpoint")
        await w.keeper.tend(run)
        assert w.api.named(SPARE_POOLS, "llama")["spec"]["spares"] == 2
        assert run.story.anew is None

    in_world(test)


def test_another_number_in_the_annotation_is_followed_and_a_person_s_is_kept_until_then() -> None:
    async def test(w: World) -> None:
        w.begin()
        await w.keeper.tend(w.run)
        pool = w.api.named(SPARE_POOLS, "llama")
        pool["spec"]["spares"] = 3
        await w.keeper.tend(w.run)
        assert pool["spec"]["spares"] == 3
        for pod in w.ledger.pods_of(KEY):
            pod.annotations["torchrelay.dev/spares"] = "2"
        await w.keeper.tend(w.run)
        assert pool["spec"]["spares"] == 2
        assert w.api.named(TRAINING_JOBS, "llama")["spec"]["spares"] == 2

    in_world(test)


def mirrored(w: World, ttl_s: float) -> Expiry:
    expiry = Expiry(w.api, w.ledger, ttl_s)  # type: ignore[arg-type]  # a stand-in
    for job in w.api.all(TRAINING_JOBS):
        expiry.changed(job, False)
    return expiry


@pytest.mark.parametrize(
    ("ttl_s", "after_s", "is_there"), [(TTL_S, 99.0, True), (TTL_S, 100.0, False), (-1.0, 1e9, True)]
)
def test_a_job_that_has_ended_is_removed_after_its_time(ttl_s: float, after_s: float, is_there: bool) -> None:
    async def test(w: World) -> None:
        w.begin()
        await w.keeper.tend(w.run)
        w.run.story.take(e.to_job_event(e.JobFinished(0, "all ranks are done"), WALL_S))
        w.run.core.end_job(0, "all ranks are done")
        await w.status_writer.write(w.run)
        assert w.api.named(TRAINING_JOBS, "llama")["status"]["finishedAt"] == timestamp(WALL_S)
        await mirrored(w, ttl_s).look(WALL_S + after_s, 1.0)
        w.api.collect()
        assert bool(there(w, TRAINING_JOBS, SPARE_POOLS)) is is_there

    in_world(test)


def test_one_that_is_removed_while_its_pods_stay_is_not_made_again() -> None:
    async def test(w: World) -> None:
        w.begin()
        await w.keeper.tend(w.run)
        w.run.story.take(e.to_job_event(e.JobFinished(0, "all ranks are done"), WALL_S))
        w.run.core.end_job(0, "all ranks are done")
        await w.status_writer.write(w.run)
        await mirrored(w, TTL_S).look(WALL_S + TTL_S, 1.0)
        w.api.collect()
        w.run.core.job.generation += 1  # something to tell
        for _ in range(3):
            await w.status_writer.write(w.run)
            await w.keeper.tend(w.run)
        assert there(w, TRAINING_JOBS, SPARE_POOLS) == set()
        another = JobRun(KEY, 2, LAUNCH, Asked(), lineage="another job of the name")
        assert w.status_writer.is_removed(w.run)
        assert not w.status_writer.is_removed(another)
        another.task.cancel()

    in_world(test)


def test_what_nobody_saw_end_is_removed_when_nothing_of_it_was_there_for_that_time() -> None:
    async def test(w: World) -> None:
        await w.keeper.tend(w.run)
        expiry = mirrored(w, TTL_S)
        await expiry.look(WALL_S, 1.0)
        await expiry.look(WALL_S, 1e9)
        assert there(w, TRAINING_JOBS)
        w.run.task.cancel()
        del w.ledger.runs[KEY]
        w.ledger.pods.clear()
        await expiry.look(WALL_S, 2e9)
        await expiry.look(WALL_S, 2e9 + TTL_S - 1.0)
        assert there(w, TRAINING_JOBS)
        await expiry.look(WALL_S, 2e9 + TTL_S)
        assert not there(w, TRAINING_JOBS)

    in_world(test)


def test_the_controller_itself_removes_an_ended_job_and_looks_after_its_pool_by_a_mirror() -> None:
    async def run() -> None:
        async with KubeCluster.open(ttl_after_finished_s=0.0) as cluster:
            play = cluster.job("llama")
            await cluster.trains(play)
            asked = [call for call in cluster.api.calls if call[:2] == ("get", "SparePool")]
            assert asked == []
            pool = cluster.api.named(SPARE_POOLS, "llama")
            cluster.api.put(SPARE_POOLS, pool | {"spec": {**pool["spec"], "spares": 2}})
            await cluster.until(lambda: len(play.agents) == 4)
            for agent in play.agents[:2]:
                cluster.api.remove(PODS, agent.pod.name)
            await cluster.until(lambda: not cluster.api.all(TRAINING_JOBS), 30.0)
            cluster.api.collect()
            assert not cluster.api.all(SPARE_POOLS)
            assert not cluster.api.all(BUDGETS)

    asyncio.run(run())


def test_a_training_job_is_made_with_its_workload_and_not_changed_for_it_afterwards() -> None:
    """Of a controller that ends in between, nothing is left that goes with nobody."""

    async def test(w: World) -> None:
        owned(w, "job-1")
        w.begin()
        await w.status_writer.training_job(w.run, w.ledger.pods_of(KEY)[0], Asked())
        assert [verb for verb, kind, _ in w.api.calls if kind == TRAINING_JOBS.name] == ["get", "create"]
        (reference,) = w.api.named(TRAINING_JOBS, "llama")["metadata"]["ownerReferences"]
        assert reference["uid"] == "job-1"

    in_world(test)


def test_a_run_of_bare_pods_is_of_no_workload() -> None:
    async def test(w: World) -> None:
        run = JobRun(KEY, 2, LAUNCH, Asked())
        run.task.cancel()
        await w.keeper.tend(w.run)
        job = w.api.named(TRAINING_JOBS, "llama")
        assert not job["metadata"].get("ownerReferences")
        assert "workloadUID" not in job["spec"]

    in_world(test)


def test_another_number_of_a_pool_is_told_once_with_who_has_asked_for_it() -> None:
    async def test(w: World) -> None:
        w.begin()
        told: list[e.Occurrence] = []
        hear = w.run.story.take

        def take(event: msg.JobEvent) -> None:
            told.append(e.from_job_event(event))
            hear(event)

        w.run.story.take = take  # type: ignore[method-assign]  # in its place for this test
        await w.keeper.tend(w.run)
        pool = w.api.named(SPARE_POOLS, KEY.name)
        pool["metadata"] |= {"generation": 2, "annotations": {kube.CHANGED_BY: "2 alice"}}
        pool["spec"]["spares"] = 3
        for _ in range(2):
            await w.keeper.tend(w.run)
        assert [a for a in told if isinstance(a, e.SparesAsked)] == [e.SparesAsked(2, "", 3, "alice")]

    in_world(test)
