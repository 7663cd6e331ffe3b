"""A job that has fallen: what is tried, what is told, and how it begins again; the API is in memory."""

from __future__ import annotations

import dataclasses
import os
import time
from pathlib import Path
from typing import Any

import pytest
from support.kube_world import KEY, LAUNCH, World, in_world, manifest

from torchrelay.controller.kube.client.api import MIGRATIONS, PODS, SPARE_POOLS, TRAINING_JOBS
from torchrelay.controller.kube.jobs.remembered import recall
from torchrelay.controller.kube.jobs.run import JobRun
from torchrelay.controller.kube.reconcilers.fallback import FIND_S, REMOVED_S, Fallback
from torchrelay.controller.kube.status.losses import Loss
from torchrelay.controller.migration.state import State
from torchrelay.controller.restart.fallen import Fallen
from torchrelay.protocol import events as e
from torchrelay.protocol import messages as msg
from torchrelay.protocol.errors import FatalError
from torchrelay.protocol.kube.annotations import PodAnnotations as Asked
from torchrelay.protocol.names import NO_RANK
from torchrelay.protocol.security.pod_tls import PodIdentity
from torchrelay.shim.replicas.kept_files import clear

NOW_S = 50.0


def fall(w: World, directory: str = "", options: Asked | None = None, restarts: tuple[int, ...] = ()) -> None:
    """Rank 1 is lost, and there is no spare for it."""
    w.run.task.cancel()
    w.run = w.ledger.runs[KEY] = JobRun(KEY, 2, LAUNCH, options or Asked(checkpoint_dir="/c"), restarts)
    w.begin()
    w.run.story.take(e.to_job_event(e.MigrationStarted("m1", "unplanned", 1, "killed", 1), 1000.0))
    state = State("m1", 2, 1, {}, no_spare="no spare is left for rank 1", target=40)
    refused = "" if directory else "rank 1 alone held its shard"
    w.run.core._parts.ending.fallen = Fallen(137, "rank 1 is lost", 1, state, directory, refused)
    w.run.core.take()


def rungs(w: World) -> list[tuple[str, str]]:
    (story,) = w.ledger.runs[KEY].story.migrations
    return [(r["rung"], r["outcome"]) for r in story.status["rungs"]]


def orders(run: JobRun, kind: type) -> list[Any]:
    return [o for queue in run.relay._streams.orders.values() for o in queue._kept if isinstance(o, kind)]


def test_what_survivors_saved_is_begun_from_in_a_run_of_its_own() -> None:
    async def test(w: World) -> None:
        fall(w, "/c/jit")
        w.run.losses.add(Loss(1, 40, 1000.0, "killed"))
        Fallback(w.ledger).look(w.run, NOW_S)
        run = w.ledger.runs[KEY]
        assert run is not w.run
        assert [(loss.step, loss.rung) for loss in run.losses.known] == [(40, "jit-checkpoint")]
        assert run.restart is not None
        assert (run.restart.directory, run.restarts, run.gathers) == ("/c/jit", (40,), True)
        assert w.ledger.over == [w.run]
        assert w.run.story.migrations == []
        assert len(orders(w.run, msg.RestartWorkers)) == 2
        assert rungs(w) == [("next-spare", "refused"), ("respawn", "refused"), ("jit-checkpoint", "taken")]
        await w.keeper.tend(run)
        await w.status_writer.write(run)
        status = w.api.named(TRAINING_JOBS, "llama")["status"]
        assert (status["phase"], status["restartSteps"]) == ("Restarting", [40])
        assert "0 of 2 processes" in status["protectionReason"]

    in_world(test)


def test_checkpoints_on_disk_are_asked_for_only_where_nothing_better_is_there() -> None:
    async def test(w: World) -> None:
        fall(w)
        fallback = Fallback(w.ledger)
        fallback.look(w.run, NOW_S)
        fallback.look(w.run, NOW_S + 1.0)
        assert [o.directory for o in orders(w.run, msg.FindCheckpoints)] == ["/c"]
        found = (msg.FoundCheckpoint("/c/30", 30, "cut off"), msg.FoundCheckpoint("/c/20", 20))
        w.run.core.receive(w.pod("llama-0").agent, msg.CheckpointsFound(found), NOW_S)
        fallback.look(w.run, NOW_S + 2.0)
        restart = w.ledger.runs[KEY].restart
        assert restart is not None
        assert (restart.directory, restart.checkpoint, restart.aside) == ("", "/c/20", ("/c/30",))
        assert restart.launch == {0: LAUNCH, 1: LAUNCH}

    in_world(test)


@pytest.mark.parametrize("why", ["nobody is there", "nobody answers"])
def test_a_folder_that_cannot_be_looked_into_is_the_end(why: str) -> None:
    async def test(w: World) -> None:
        fall(w)
        fallback = Fallback(w.ledger)
        if why == "nobody is there":
            for node in w.run.core.job.nodes:
                w.run.core.detach(node, NOW_S)
        fallback.look(w.run, NOW_S)
        fallback.look(w.run, NOW_S + FIND_S + 1.0)
        assert w.run.core.ended is not None
        assert (w.run.core.ended.exit_code, "nothing is left" in w.run.core.ended.reason) == (137, True)
        assert rungs(w)[-1] == ("checkpoint", "refused")
        assert orders(w.run, msg.RestartWorkers) == []

    in_world(test)


def test_the_end_has_the_reason_that_began_it_where_the_job_never_came_to_train_again() -> None:
    async def test(w: World) -> None:
        fall(w, options=Asked())
        w.run.losses.add(Loss(1, 40, 1000.0, "rank 1 was killed", "jit-checkpoint"))
        Fallback(w.ledger).look(w.run, NOW_S)
        assert w.run.core.ended is not None
        assert w.run.core.ended.reason.startswith("rank 1 is lost; nothing is left: ")
        assert w.run.core.ended.reason.endswith("; it began with: rank 1 was killed")

    in_world(test)


def test_what_keeps_spares_away_is_told_with_the_rung() -> None:
    async def test(w: World) -> None:
        fall(w, "/c/jit")
        w.run.trouble = "exceeded quota"
        Fallback(w.ledger).look(w.run, NOW_S)
        (story,) = w.ledger.runs[KEY].story.migrations
        assert story.status["rungs"][0]["reason"] == "no spare is left for rank 1: exceeded quota"

    in_world(test)


def test_a_refused_pod_is_not_asked_for_again_at_once_and_everything_else_is_written() -> None:
    async def test(w: World) -> None:
        w.begin()
        w.api.refused["Pod"] = 'pods "llama-spare-x" is forbidden: exceeded quota: full'
        for _ in range(3):
            await w.keeper.tend(w.run)
        assert w.api.asked["Pod"] == 1
        assert "exceeded quota" in w.api.named(SPARE_POOLS, "llama")["status"]["trouble"]
        assert w.run.core.job.spares_to_come(0) == 1
        w.api.refused.clear()
        w.keeper._held_back.clear()
        await w.keeper.tend(w.run)
        assert len(w.spares()) == 1
        assert "trouble" not in w.api.named(SPARE_POOLS, "llama")["status"]

    in_world(test)


def test_a_spare_that_has_just_been_asked_for_is_told_as_one_that_is_made() -> None:
    async def test(w: World) -> None:
        w.begin()
        await w.keeper.tend(w.run)
        assert len(w.spares()) == 1
        assert w.run._spares == e.SparesChanged(1, 0, 1, "")

    in_world(test)


def gathering(w: World) -> JobRun:
    fall(w, "/c/jit")
    Fallback(w.ledger).look(w.run, NOW_S)
    return w.ledger.runs[KEY]


def ended(pod: dict[str, Any]) -> dict[str, Any]:
    return pod | {"status": {"phase": "Running", "containerStatuses": [{"name": "t", "state": {"terminated": {}}}]}}


def test_pods_are_made_for_processes_that_do_not_start_again_and_their_agents_may_go() -> None:
    async def test(w: World) -> None:
        run = gathering(w)
        await w.keeper.tend(run)
        assert w.spares() == []
        gone = w.add(ended(w.pod("llama-1").manifest))
        run.core.attach(msg.AgentHello(gone.agent, -1, "10.0.0.1", ()), NOW_S)
        await w.keeper.tend(run)
        await w.keeper.tend(run)
        assert len(w.spares()) == 1
        assert orders(run, msg.StopJob)

    in_world(test)


def test_containers_that_start_again_need_no_new_pods() -> None:
    async def test(w: World) -> None:
        run = gathering(w)
        for pod in w.ledger.pods_of(KEY):
            w.add(ended(pod.manifest | {"spec": pod.manifest["spec"] | {"restartPolicy": "OnFailure"}}))
        await w.keeper.tend(run)
        assert w.spares() == []

    in_world(test)


def test_an_owner_is_given_time_to_make_pods_anew() -> None:
    async def test(w: World) -> None:
        run = gathering(w)
        for pod in w.ledger.pods_of(KEY):
            meta = pod.manifest["metadata"] | {"ownerReferences": [{"kind": "Job", "name": "j", "controller": True}]}
            w.add(ended(pod.manifest | {"metadata": meta}))
        await w.keeper.tend(run)
        assert w.spares() == []
        w.keeper._gathering_since_s[run.id] -= 31.0
        await w.keeper.tend(run)
        assert len(w.spares()) == 2

    in_world(test)


def test_a_job_that_is_deleted_while_it_begins_again_is_over() -> None:
    async def test(w: World) -> None:
        run, fallback = gathering(w), Fallback(w.ledger)
        w.add(
            manifest("llama-spare-9")
            | {
                "metadata": w.pod("llama-0").manifest["metadata"]
                | {
                    "name": "llama-spare-9",
                    "uid": "s9",
                    "labels": {"torchrelay.dev/job": "llama", "torchrelay.dev/role": "spare"},
                }
            }
        )
        now_s = time.monotonic()
        fallback.look(run, now_s)
        for name in ("llama-0", "llama-1"):
            del w.ledger.pods[w.pod(name).uid]
        fallback.look(run, now_s + REMOVED_S - 1.0)
        assert not run.is_over
        fallback.look(run, now_s + REMOVED_S + 1.0)
        assert run.is_over

    in_world(test)


def test_a_joiner_is_neither_surplus_nor_missing() -> None:
    async def test(w: World) -> None:
        w.begin()
        await w.keeper.tend(w.run)
        (spare,) = w.spares()
        w.run.core.attach(w.hello(spare, NO_RANK), 1.0)
        w.run.core.job.workers[f"{spare.agent}.1"].rank = 1
        w.api.named(SPARE_POOLS, "llama")["spec"]["spares"] = 0
        await w.keeper.tend(w.run)
        assert [o for o in w.api.all(PODS) if o["metadata"]["name"] == spare.name]

    in_world(test)


def test_the_same_migration_tells_how_the_job_began_again() -> None:
    async def test(w: World) -> None:
        run = gathering(w)
        resumed = e.MigrationStarted("m1", "resume", -1, "resumes from /c/jit", 1)
        run.story.take(e.to_job_event(resumed, 1001.0))
        run.story.take(e.to_job_event(e.Protection("armed", "all ranks are back"), 1002.0))
        (story,) = run.story.migrations
        assert (story.status["outcome"], story.status["phase"]) == ("checkpoint", "restarted")
        assert [(c["type"], c["status"]) for c in story.status["conditions"]] == [("Restarted", "True")]
        assert "resumes from /c/jit" in story.status["decisions"]

    in_world(test)


def test_a_new_controller_takes_up_a_job_that_was_to_begin_again() -> None:
    async def test(w: World) -> None:
        run = gathering(w)
        await w.keeper.tend(run)
        await w.status_writer.write(run)
        status = w.api.named(TRAINING_JOBS, "llama")["status"]
        run.task.cancel()
        del w.ledger.runs[KEY]
        w.ledger.take_up(KEY, recall(status), w.api.all(MIGRATIONS))
        again = w.ledger.runs[KEY]
        assert again.gathers
        assert (again.job_id, again.core._config.job_id) == (run.job_id, run.job_id)
        assert again.told_as != run.told_as == w.ledger.over[0].told_as, "who listens begins anew under this controller"
        assert (again.restart, again.restarts, again.core.job.world_size) == (run.restart, (40,), 2)
        assert again.options.spares == 1
        again.story.take(e.to_job_event(e.Protection("armed", "all ranks are back"), 1002.0))
        await w.status_writer.write(again)
        (told,) = w.api.all(MIGRATIONS)
        assert told["status"]["conditions"][-1]["type"] == "Restarted"
        assert told["status"]["rungs"]
        w.ledger.take_up(KEY._replace(name="gone"), recall(status), [])
        assert list(w.ledger.runs) == [KEY]

    in_world(test)


def test_a_new_controller_knows_what_was_lost_and_at_which_steps_a_job_has_begun_again() -> None:
    async def test(w: World) -> None:
        del w.ledger.runs[KEY]
        lost = {
            "rank": 1,
            "step": 40,
            "at": "2026-01-01T00:00:00Z",
            "rung": "respawn",
            "seconds": 1.5,
            "stepsRedone": 1,
        }
        ranks = [{"rank": 1, "worker": "x:1.1", "node": "n7"}]
        w.remembered = recall({"ranks": ranks, "restartSteps": [40, 40], "losses": [lost]})
        pod = w.pod("llama-0")
        info = msg.WorkerInfo(f"{pod.agent}.1", 0, 1, LAUNCH, 3, True, 3)
        hello = msg.AgentHello(pod.agent, -1, "10.0.0.1", (info,))
        run = await w.ledger.run_for(PodIdentity("team", "llama-0", pod.uid), hello)
        assert run.restarts == (40, 40)
        assert run.core._config.worn_out == (40,)
        assert run.core.driver.spares.respawns.boundary(1) == 40
        assert run.losses.as_status() == [lost | {"reason": ""}]
        assert run.core.job.machines == {"x:1": "n7", pod.agent: "n0"}
        w.run.task.cancel()

    in_world(test)


@pytest.mark.parametrize("is_its_own", [True, False])
def test_a_new_controller_knows_a_job_s_checkpoints_where_its_resource_names_a_pod_of_it(is_its_own: bool) -> None:
    """Where it names none, the resource may be what an earlier job of the name has left."""

    async def test(w: World) -> None:
        del w.ledger.runs[KEY]
        pod = w.pod("llama-0")
        worker = f"{pod.agent if is_its_own else 'llama-0:gone'}.1"
        w.remembered = recall({"ranks": [{"rank": 0, "worker": worker}], "lineage": "abc"})
        info = msg.WorkerInfo(f"{pod.agent}.1", 0, 1, LAUNCH, 3, True, 3)
        hello = msg.AgentHello(pod.agent, -1, "10.0.0.1", (info,))
        run = await w.ledger.run_for(PodIdentity("team", "llama-0", pod.uid), hello)
        assert (run.job_id == "team/llama/abc") is is_its_own
        w.run.task.cancel()

    in_world(test)


def test_the_folders_that_it_saves_into_say_whose_they_are_to_those_that_clear_them(tmp_path: Path) -> None:
    """Before the manifest is there: a job of another namespace with the same name and folder is writing."""

    async def test(w: World) -> None:
        fall(w)
        w.run.core.driver.clear_checkpoints(keep=1)
        told = [o.order for _, o in w.run.core.take()[0] if isinstance(o, msg.ToWorker)]
        (order,) = (o for o in told if isinstance(o, msg.ClearCheckpoints))
        begun = w.run.core.driver.saving.folder(9).name
        before = begun.replace(w.run.id, "000000")
        for owner, left in ((dataclasses.replace(order, job_id="other/llama/1"), {begun, before}), (order, {begun})):
            for name in (begun, before):
                (tmp_path / name).mkdir(exist_ok=True)
            assert clear(dataclasses.replace(owner, folder=str(tmp_path))) == ""
            assert set(os.listdir(tmp_path)) == left

    in_world(test)


def test_checkpoints_of_its_own_are_asked_for_also_when_it_has_begun_again() -> None:
    async def test(w: World) -> None:
        another_job = w.run.job_id
        run = gathering(w)
        assert run.job_id == w.ledger.over[0].job_id != another_job
        fall(w)
        Fallback(w.ledger).look(w.run, NOW_S)
        assert [o.job for o in orders(w.run, msg.FindCheckpoints)] == [w.run.job_id]

    in_world(test)


@pytest.mark.parametrize("record", ["no json", "{}", "[]", '{"launch": 3}'])
def test_a_record_of_another_version_is_named(record: str) -> None:
    with pytest.raises(FatalError, match="does not understand"):
        recall({"record": record})
