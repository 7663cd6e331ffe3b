"""One job in a cluster whose API is in memory: its resources, its spares, wishes for moves, and what is left behind."""

from __future__ import annotations

import json
from typing import Any

import pytest
from support.kube_world import KEY, LAUNCH, World, in_world, manifest

from torchrelay.controller.kube.client.api import CLAIMS, MIGRATIONS, PODS, SPARE_POOLS, TRAINING_JOBS
from torchrelay.controller.kube.jobs.run import JobRun
from torchrelay.controller.kube.reconcilers.status_writer import without_empty
from torchrelay.controller.kube.status.status_builder import Left
from torchrelay.protocol import events as e
from torchrelay.protocol import messages as msg
from torchrelay.protocol.errors import RefusedError, RetryableError
from torchrelay.protocol.kube import kube_names as kube
from torchrelay.protocol.kube.annotations import PodAnnotations as Asked
from torchrelay.protocol.names import NO_RANK
from torchrelay.protocol.security.pod_tls import PodIdentity


def test_a_job_gets_its_resource_its_pool_and_one_spare_and_no_second_one() -> None:
    async def test(w: World) -> None:
        w.begin()
        await w.keeper.tend(w.run)
        await w.keeper.tend(w.run)
        assert w.api.named(TRAINING_JOBS, "llama")["spec"]["spares"] == 1
        pool = w.api.named(SPARE_POOLS, "llama")
        (condition,) = pool["status"].pop("conditions")
        assert (condition["type"], condition["status"], condition["reason"]) == ("SparesReady", "False", "NotReady")
        assert (pool["spec"], pool["status"]) == ({"job": "llama", "spares": 1}, {"wanted": 1, "ready": 1, "warm": 0})
        (spare,) = w.spares()
        assert (
            spare.manifest["metadata"]["ownerReferences"][0]["uid"]
            == w.api.named(TRAINING_JOBS, "llama")["metadata"]["uid"]
        )
        assert w.run.core.job.spares_coming == 1

    in_world(test)


def test_a_pool_goes_with_its_job_and_its_status_is_written_when_it_changes_alone() -> None:
    async def test(w: World) -> None:
        def patches() -> list[tuple[str, str, str]]:
            return [call for call in w.api.calls if call[:2] == ("patch", "SparePool")]

        w.begin()
        await w.keeper.tend(w.run)
        job, pool = w.api.named(TRAINING_JOBS, "llama"), w.api.named(SPARE_POOLS, "llama")
        assert [o["uid"] for o in pool["metadata"]["ownerReferences"]] == [job["metadata"]["uid"]]
        await w.keeper.tend(w.run)
        before = len(patches())
        for _ in range(5):
            await w.keeper.tend(w.run)
        assert len(patches()) == before
        pool["spec"]["spares"] = 2
        await w.keeper.tend(w.run)
        assert len(patches()) == before + 1

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
            await w.status_writer.write(w.run)
        w.api.away = False
        await w.status_writer.write(w.run)
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
        w.migration_requests.changed(wish(pod="llama-9"), False)
        w.migration_requests.tick()
        (story,) = w.run.story.migrations
        assert (story.name, story.status["outcome"]) == ("wish", "refused")
        assert "llama-9" in story.status["reason"]

    in_world(test)


def test_a_wish_that_cannot_be_now_waits() -> None:
    async def test(w: World) -> None:
        w.begin()
        spare = w.add(manifest("llama-spare-2"))
        w.run.core.attach(w.hello(spare, NO_RANK), 1.0)
        w.migration_requests.changed(wish(node="n1"), False)
        w.migration_requests.tick()
        assert w.run.story.migrations == []
        assert "not reached their training loop" in w.migration_requests.waiting["wish"]
        told = w.run.story.waiting["wish"].status
        assert (told["phase"], told["reason"]) == ("waiting", w.migration_requests.waiting["wish"])

    in_world(test)


def test_a_migration_that_the_controller_made_is_no_wish() -> None:
    async def test(w: World) -> None:
        w.begin()
        own = wish(rank=7)
        own["metadata"]["annotations"] = {"torchrelay.dev/origin": "controller"}
        w.migration_requests.changed(own, False)
        w.migration_requests.tick()
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
        assert w.run.core.job.machines == {pod.agent: "n1"}
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


def led_by_another(outcome: str = "") -> dict[str, Any]:
    own = wish(rank=1)
    own["metadata"]["annotations"] = {"torchrelay.dev/origin": "controller"}
    own["status"] = {"startedAt": "2026-01-01T00:00:00Z", "rank": 1, "phase": "quiesce", "fromPod": "llama-9"}
    own["status"] |= {"outcome": outcome} if outcome else {}
    return own


@pytest.mark.parametrize(("before", "outcome"), [("llama-9", "committed"), ("llama-1", "abandoned")])
def test_a_migration_of_a_controller_that_is_no_more_is_closed(before: str, outcome: str) -> None:
    async def test(w: World) -> None:
        own = led_by_another()
        own["status"]["fromPod"] = before
        w.migration_requests.changed(own, False)
        w.migration_requests.tick()
        assert w.run.story.migrations == []
        w.begin()
        w.migration_requests.tick()
        w.migration_requests.tick()
        (story,) = w.run.story.migrations
        assert (story.name, story.status["outcome"], story.exists) == ("wish", outcome, True)
        assert "the controller that led it is gone; rank 1 lives in pod llama-1" in story.status["decisions"][-1]

    in_world(test)


def test_one_that_is_over_or_our_own_is_left_alone() -> None:
    async def test(w: World) -> None:
        w.begin()
        w.migration_requests.changed(led_by_another("committed"), False)
        w.migration_requests.tick()
        assert w.run.story.migrations == []
        w.run.story.take(e.to_job_event(e.MigrationStarted("m1", "unplanned", 1, "killed", 1), 1000.0))
        ours = led_by_another()
        ours["metadata"]["name"] = w.run.story.migrations[0].name
        w.migration_requests.changed(ours, False)
        w.migration_requests.tick()
        assert len(w.run.story.migrations) == 1
        assert "outcome" not in w.run.story.migrations[0].status

    in_world(test)


def test_a_person_s_wish_that_another_controller_had_begun_is_begun_anew() -> None:
    async def test(w: World) -> None:
        w.begin()
        begun = wish(pod="llama-9")
        begun["status"] = {"startedAt": "2026-01-01T00:00:00Z", "phase": "quiesce"}
        w.migration_requests.changed(begun, False)
        w.migration_requests.tick()
        assert [s.status["outcome"] for s in w.run.story.migrations] == ["refused"]

    in_world(test)


def test_a_spare_whose_process_ended_for_good_is_none_and_another_one_is_made() -> None:
    async def test(w: World) -> None:
        w.begin()
        await w.keeper.tend(w.run)
        (spare,) = w.spares()
        status = {"phase": "Running", "containerStatuses": [{"name": "t", "state": {"terminated": {"exitCode": 137}}}]}
        w.add(spare.manifest | {"status": status})
        await w.keeper.tend(w.run)
        assert [o["metadata"]["name"] for o in w.api.all(PODS) if o["metadata"]["name"] == spare.name] == []
        assert len([o for o in w.api.all(PODS) if "-spare-" in o["metadata"]["name"]]) == 1

    in_world(test)


def test_spares_stay_while_a_new_controller_does_not_know_yet_who_has_which_rank() -> None:
    async def test(w: World) -> None:
        w.begin()
        await w.keeper.tend(w.run)
        (spare,) = w.spares()
        w.run.task.cancel()
        w.run = w.ledger.runs[KEY] = JobRun(KEY, 2, LAUNCH, Asked())
        parked = msg.WorkerInfo(f"{spare.agent}.1", NO_RANK, 1, LAUNCH, 4, False, -1)
        w.run.core.attach(msg.AgentHello(spare.agent, -1, "10.0.0.1", (parked,)), 1.0)
        await w.keeper.tend(w.run)
        assert spare.name in [o["metadata"]["name"] for o in w.api.all(PODS)]

    in_world(test)


def node(name: str, ready: bool) -> dict[str, Any]:
    condition = {"type": "Ready", "status": str(ready)}
    return {"metadata": {"name": name}, "spec": {}, "status": {"conditions": [condition]}}


def test_a_pod_on_a_node_that_stays_away_is_deleted_by_force_once_its_rank_has_moved() -> None:
    async def test(w: World) -> None:
        w.begin()
        w.keeper._node_grace_s = 0.0
        w.ledger.node_changed(node("n0", True), False)
        w.ledger.node_changed(node("n1", False), False)
        await w.keeper.tend(w.run)
        assert len([o for o in w.api.all(PODS) if o["metadata"]["name"] in ("llama-0", "llama-1")]) == 2
        w.run.core.job.holders[1] = f"{w.pod('llama-0').agent}.1"
        w.run.core.job.workers[f"{w.pod('llama-1').agent}.1"].exited = msg.WorkerExited("", 137, 9, True)
        w.ledger.node_changed(node("n1", True), False)
        await w.keeper.tend(w.run)
        assert [o for o in w.api.all(PODS) if o["metadata"]["name"] == "llama-1"]
        w.ledger.node_changed(node("n1", False), False)
        await w.keeper.tend(w.run)
        assert [o["metadata"]["name"] for o in w.api.all(PODS) if o["metadata"]["name"][:7] == "llama-1"] == []

    in_world(test)


def test_a_checkpoint_that_a_person_asks_for_is_refused_where_the_job_names_no_folder() -> None:
    async def test(w: World) -> None:
        w.begin()
        w.migration_requests.changed(wish(save=True), False)
        w.migration_requests.tick()
        (story,) = w.run.story.migrations
        assert (story.status["outcome"], story.status["kind"]) == ("refused", "save")
        assert "annotation checkpoint-dir" in story.status["reason"]

    in_world(test)


def test_the_apis_user_who_asked_goes_on_to_the_job() -> None:
    async def test(w: World) -> None:
        w.begin()
        asked: list[msg.MigrateRequest] = []
        w.run.core.user_requests.migrate = lambda request, now_s: (
            asked.append(request) or msg.MigrateReply(False, "", "no")
        )  # type: ignore[method-assign,func-returns-value]
        made = wish(rank=1)
        made["metadata"]["annotations"] = {kube.REQUESTED_BY: "alice@example.org"}
        w.migration_requests.changed(made, False)
        w.migration_requests.tick()
        assert [(request.rank, request.by) for request in asked] == [(1, "alice@example.org")]

    in_world(test)


def test_how_many_spares_there_are_is_told_when_it_changes() -> None:
    async def test(w: World) -> None:
        w.begin()
        for _ in range(3):
            await w.keeper.tend(w.run)
        (spare,) = w.spares()
        w.run.core.attach(w.hello(spare, NO_RANK), 1.0)
        w.run.core.job.workers[f"{spare.agent}.1"].warm = True
        await w.keeper.tend(w.run)
        w.run.relay.spares_changed()
        told = [json.loads(e.fields_json) for e in w.run.relay.told if e.name == "spares"]
        assert [(t["wanted"], t["ready"], t["making"]) for t in told] == [(1, 0, 1), (1, 1, 0)]

    in_world(test)


def test_a_spare_gets_a_claim_like_the_copied_rank_s_own_and_names_one_that_is_gone() -> None:
    async def test(w: World) -> None:
        own = ["scratch-llama-1", "cache-llama-1"]
        volumes = [{"name": n.partition("-")[0], "persistentVolumeClaim": {"claimName": n}} for n in own]
        w.ledger.pods.pop(w.pod("llama-1").uid)
        w.add(manifest("llama-1", volumes=volumes))
        w.begin()
        spec = {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Ti"}}, "volumeName": "pv-7"}
        meta = {"name": "scratch-llama-1", "namespace": "team"}
        w.api.put(CLAIMS, {"metadata": meta, "spec": spec})
        w.api.put(CLAIMS, {"metadata": {**meta, "name": "cache-llama-1", "namespace": "others"}, "spec": {}})
        await w.keeper.tend(w.run)
        (spare,) = w.spares()
        made = {v["name"]: v for v in spare.manifest["spec"]["volumes"]}
        template = {"spec": {k: v for k, v in spec.items() if k != "volumeName"}}
        assert made["scratch"] == {"name": "scratch", "ephemeral": {"volumeClaimTemplate": template}}
        assert made["cache"] == volumes[1], "the scheduler says that it is not there"

    in_world(test)
