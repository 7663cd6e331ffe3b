"""A pod whose rank lives elsewhere by now is a spare, if its container starts again."""

from __future__ import annotations

from support.kube_world import World, in_world

from torchrelay.controller.kube.reconcilers.spare_keeper import COMES_BACK_S
from torchrelay.protocol import messages as msg
from torchrelay.protocol.names import NO_RANK


async def with_a_moved_rank(w: World, policy: str) -> None:
    """Rank 1 has moved from the pod llama-1, where its process has ended, to the one spare."""
    for pod in w.ledger.pods_of(w.run.key):
        w.add(pod.manifest | {"spec": pod.manifest["spec"] | {"restartPolicy": policy}})
    w.begin()
    await w.keeper.tend(w.run)
    (spare,) = w.spares()
    w.run.core.attach(w.hello(spare, NO_RANK), 1.0)
    job = w.run.core.job
    job.workers[f"{spare.agent}.1"].rank = 1
    job.workers[job.holders[1]].exited = msg.WorkerExited(job.holders[1], 137, 9, False)
    job.move(1, f"{spare.agent}.1", 5)


def come_back(w: World) -> str:
    agent = w.pod("llama-1").agent
    worker = f"{agent}.2"
    w.run.core.receive(agent, msg.WorkerStarted(worker, 1, 2, {"RANK": "1", "WORLD_SIZE": "2"}), 2.0)
    return worker


def test_no_further_pod_is_made_while_it_is_to_come_back_and_when_it_has() -> None:
    async def test(w: World) -> None:
        await with_a_moved_rank(w, "OnFailure")
        await w.keeper.tend(w.run)
        assert len(w.spares()) == 1
        worker = come_back(w)
        assert w.run.core.job.workers[worker].is_spare
        w.keeper._empty_since_s.clear()
        await w.keeper.tend(w.run)
        assert len(w.spares()) == 1

    in_world(test)


def test_one_is_made_where_it_does_not_come_back_in_time() -> None:
    async def test(w: World) -> None:
        await with_a_moved_rank(w, "OnFailure")
        await w.keeper.tend(w.run)
        w.keeper._empty_since_s[w.pod("llama-1").uid] -= COMES_BACK_S + 1.0
        await w.keeper.tend(w.run)
        assert len(w.spares()) == 2

    in_world(test)


def test_one_is_made_at_once_where_it_never_does() -> None:
    async def test(w: World) -> None:
        await with_a_moved_rank(w, "Never")
        await w.keeper.tend(w.run)
        assert len(w.spares()) == 2

    in_world(test)


def test_a_parked_pod_is_no_spare_on_a_node_that_is_to_be_left() -> None:
    async def test(w: World) -> None:
        await with_a_moved_rank(w, "OnFailure")
        come_back(w)
        w.ledger.node_changed({"metadata": {"name": "n1"}, "spec": {"unschedulable": True}, "status": {}}, False)
        assert w.ledger.why_not("n1")
        await w.keeper.tend(w.run)
        assert len(w.spares()) == 2

    in_world(test)


def test_the_core_is_told_where_processes_start_again() -> None:
    async def test(w: World) -> None:
        await with_a_moved_rank(w, "OnFailure")
        job, agent = w.run.core.job, w.pod("llama-1").agent
        assert agent in job.starting_again
        w.add(w.pod("llama-1").manifest | {"status": {"phase": "Failed"}})
        await w.keeper.tend(w.run)
        assert agent not in job.starting_again
        assert job.not_again[agent] == "its pod has ended"

    in_world(test)


def test_a_spares_pod_that_has_lost_its_rank_comes_back_too() -> None:
    async def test(w: World) -> None:
        await with_a_moved_rank(w, "OnFailure")
        job, (spare,) = w.run.core.job, w.spares()
        w.add(spare.manifest | {"status": {"phase": "Running"}})
        w.keeper._empty_since_s[w.pod("llama-1").uid] = -COMES_BACK_S
        job.workers[job.holders[1]].exited = msg.WorkerExited(job.holders[1], 137, 9, False)
        await w.keeper.tend(w.run)
        assert [p.name for p in w.spares()] == [spare.name]

    in_world(test)
