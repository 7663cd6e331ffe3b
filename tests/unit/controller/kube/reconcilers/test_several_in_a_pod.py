"""Two ranks in each pod: spares are counted in pods, and a pod is left when the last of its ranks has."""

from __future__ import annotations

import pytest
from support.kube_world import KEY, World, in_world, manifest

from torchrelay.controller.kube.client.api import PODS
from torchrelay.controller.kube.cluster.pods import Pod
from torchrelay.controller.kube.jobs.run import JobRun
from torchrelay.controller.kube.status.status_builder import Left
from torchrelay.protocol import messages as msg
from torchrelay.protocol.errors import RetryableError
from torchrelay.protocol.kube.annotations import PodAnnotations as Asked
from torchrelay.protocol.names import NO_RANK
from torchrelay.protocol.security.pod_tls import PodIdentity


def launch(rank: int, world_size: int = 4) -> dict[str, str]:
    numbers = {"RANK": rank, "LOCAL_RANK": rank % 2, "LOCAL_WORLD_SIZE": 2, "WORLD_SIZE": world_size}
    return {**{name: str(n) for name, n in numbers.items()}, "TORCHELASTIC_RUN_ID": "job"}


def hello(pod: Pod, *ranks: int) -> msg.AgentHello:
    """NO_RANK is a spare, with what its own launcher has told it of a job of two."""
    infos = [
        msg.WorkerInfo(f"{pod.agent}.{n + 1}", rank, 1, launch(n, 2) if rank == NO_RANK else launch(rank))
        for n, rank in enumerate(ranks)
    ]
    return msg.AgentHello(pod.agent, -1, "10.0.0.1", tuple(infos))


def begin(w: World) -> None:
    """Ranks 0 and 1 in one pod, 2 and 3 in the other."""
    w.run.task.cancel()
    w.run = w.ledger.runs[KEY] = JobRun(KEY, 4, launch(0), Asked(spares=1))
    for first in (0, 2):
        pod = w.pod(f"llama-{first // 2}")
        w.run.core.attach(hello(pod, first, first + 1), 1.0)
        for n in range(2):
            worker = f"{pod.agent}.{n + 1}"
            w.run.core.receive(pod.agent, msg.FromWorker(worker, msg.Armed(first + n, 4, "gloo", "")), 1.0)
            w.run.core.receive(pod.agent, msg.FromWorker(worker, msg.ReplicaCheck(3, {"w": "aa"}, ("w",))), 1.0)


def add_spare(w: World, warm: int) -> Pod:
    pod = w.spares()[0]
    w.run.core.attach(hello(pod, NO_RANK, NO_RANK), 1.0)
    for n in range(warm):
        w.run.core.receive(pod.agent, msg.FromWorker(f"{pod.agent}.{n + 1}", msg.Warm("")), 1.0)
    return pod


def test_one_spare_is_one_pod_and_warm_when_all_of_it_is() -> None:
    async def test(w: World) -> None:
        begin(w)
        await w.keeper.tend(w.run)
        pod = add_spare(w, warm=1)
        await w.keeper.tend(w.run)
        assert len(w.spares()) == 1
        assert not w.run.is_warm(pod.agent)
        w.run.core.receive(pod.agent, msg.FromWorker(f"{pod.agent}.2", msg.Warm("")), 1.0)
        assert w.run.is_warm(pod.agent)

    in_world(test)


def test_a_spare_s_pod_that_a_rank_lives_in_is_used_and_another_one_is_made() -> None:
    async def test(w: World) -> None:
        begin(w)
        await w.keeper.tend(w.run)
        pod = add_spare(w, warm=2)
        w.run.core.job.workers[f"{pod.agent}.2"].rank = 3
        w.run.core.job.holders[3] = f"{pod.agent}.2"
        await w.keeper.tend(w.run)
        assert len(w.spares()) == 2

    in_world(test)


@pytest.mark.parametrize(("others", "is_there"), [(True, True), (False, False)])
def test_a_pod_is_deleted_when_the_last_of_its_ranks_has_left(others: bool, is_there: bool) -> None:
    async def test(w: World) -> None:
        begin(w)
        agent = w.pod("llama-1").agent
        w.run.core.job.holders[2] = f"{w.pod('llama-0').agent}.1"
        if not others:
            w.run.core.job.holders[3] = f"{w.pod('llama-0').agent}.2"
        w.run.story.left.append(Left(f"{agent}.1", 2, True, "why"))
        await w.keeper.tend(w.run)
        assert bool([o for o in w.api.all(PODS) if o["metadata"]["name"] == "llama-1"]) is is_there

    in_world(test)


def test_a_migration_of_a_pod_is_one_of_each_of_its_ranks() -> None:
    async def test(w: World) -> None:
        begin(w)
        await w.keeper.tend(w.run)
        add_spare(w, warm=2)
        for pod in ("llama-0", "llama-1"):
            agent = w.pod(pod).agent
            seen = tuple(msg.WorkerProgress(f"{agent}.{n}", 7, 7, "body", False, 1, "R") for n in (1, 2))
            w.run.core.receive(agent, msg.Progress(seen), 1.0)
        meta = {"name": "wish", "namespace": "team", "uid": "w-1"}
        w.migration_requests.changed({"metadata": meta, "spec": {"job": "llama", "pod": "llama-1"}}, False)
        w.migration_requests.tick()
        (story,) = w.run.story.migrations
        assert (story.name, story.status["rank"]) == ("wish", 2)
        (waits,) = w.run.core._parts.planned_moves._waiting_moves
        assert (waits.rank, waits.asked) == (3, "Migration wish asks for it (its pod is left, after rank 2)")

    in_world(test)


def test_a_controller_that_is_new_learns_the_job_from_a_rank_and_not_from_a_parked_neighbour() -> None:
    async def test(w: World) -> None:
        w.run.task.cancel()
        del w.ledger.runs[KEY]
        pod = w.add(manifest("llama-spare-2"))
        identity = PodIdentity("team", pod.name, pod.uid)
        with pytest.raises(RetryableError):
            await w.ledger.run_for(identity, hello(pod, NO_RANK, NO_RANK))
        run = await w.ledger.run_for(identity, hello(pod, NO_RANK, 3))
        assert (run.core.job.world_size, run.processes) == (4, 2)

    in_world(test)


def test_ranks_that_do_not_go_into_pods_of_that_size_are_a_job_that_is_not_protected() -> None:
    async def test(w: World) -> None:
        w.run.task.cancel()
        w.run = w.ledger.runs[KEY] = JobRun(KEY, 3, launch(0, 3), Asked())
        assert (w.run.core.job.world_size, w.run.processes) == (3, 1)
        w.run.core.attach(msg.AgentHello("a", -1, "a", (msg.WorkerInfo("a.1", 0, 1, launch(0, 3)),)), 1.0)
        assert "2 of 3 ranks" in w.run.core.job.workers["a.1"].disabled

    in_world(test)
