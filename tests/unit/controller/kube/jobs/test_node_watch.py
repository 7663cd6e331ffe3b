"""What a cluster says of nodes reaches each job there as evidence, and the policy decides."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import types
from collections.abc import Callable
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import pytest
from support.fake_kube import FakeApi

from torchrelay.controller.kube.cluster.nodes import read_node
from torchrelay.controller.kube.cluster.pods import JobKey, Pod, read_pod
from torchrelay.controller.kube.controller import Controller
from torchrelay.controller.kube.jobs.ledger import Ledger
from torchrelay.controller.kube.jobs.node_watch import NodeWatch
from torchrelay.controller.kube.jobs.run import JobRun
from torchrelay.controller.kube.pulse import Pulse
from torchrelay.controller.kube.settings import ClusterSettings
from torchrelay.protocol import events as e
from torchrelay.protocol import messages as msg
from torchrelay.protocol.errors import FrameError
from torchrelay.protocol.health import kinds as k
from torchrelay.protocol.health.policy import HealthPolicy
from torchrelay.protocol.health.policy_file import default_policy
from torchrelay.protocol.kube import kube_names as kube
from torchrelay.protocol.kube.annotations import PodAnnotations
from torchrelay.protocol.names import NO_RANK
from torchrelay.protocol.security.pod_tls import PodIdentity
from torchrelay.protocol.security.tls import Credentials

KEY = JobKey("team", "llama")
LAUNCH = {"WORLD_SIZE": "2", "MASTER_ADDR": "llama-0", "MASTER_PORT": "29500"}
POLICY = default_policy()
SPARE = 2


def node(name: str, **spec: Any) -> dict[str, Any]:
    conditions = spec.pop("conditions", [{"type": "Ready", "status": "True"}])
    return {"metadata": {"name": name, "uid": name}, "spec": spec, "status": {"conditions": conditions}}


def pod(number: int, **status: Any) -> dict[str, Any]:
    meta = {
        "name": f"llama-{number}",
        "namespace": "team",
        "uid": f"0000000{number}-1",
        "labels": {"torchrelay.dev/job": "llama"},
    }
    return {"metadata": meta, "spec": {"nodeName": f"n{number}"}, "status": {"phase": "Running", **status}}


class Cluster:
    """A job of two ranks and a warm spare, each on a node of its own: n0, n1, n2."""

    def __init__(
        self, policy: HealthPolicy = POLICY, spare: bool = True, options: PodAnnotations | None = None
    ) -> None:
        self.ledger = Ledger(self._nothing, self._nothing, policy)  # type: ignore[arg-type]  # a stand-in
        self.nodes = types.SimpleNamespace(listed=asyncio.Event(), broken="")
        self.nodes.listed.set()
        self.watch = NodeWatch(self.ledger, self.nodes)  # type: ignore[arg-type]  # a stand-in
        self.run = self.ledger.runs[KEY] = JobRun(KEY, 2, LAUNCH, options or PodAnnotations(), policy)
        self.events: list[Any] = []
        hear = self.run.story.take
        self.run.story.take = lambda event: (self._hear(event), hear(event))[1]  # type: ignore[method-assign]  # in its place for this test
        for number in range(3 if spare else 2):
            self.add(number)

    async def _nothing(self, *_: Any) -> Any:
        return None

    def _hear(self, event: msg.JobEvent) -> None:
        with contextlib.suppress(FrameError):
            self.events.append(e.from_job_event(event))

    def take(self, manifest: dict[str, Any]) -> Pod:
        found = read_pod(manifest)
        assert found is not None
        self.ledger.pods[found.uid] = found
        return found

    def add(self, number: int) -> None:
        self.ledger.node_changed(node(f"n{number}"), False)
        agent = self.take(pod(number)).agent
        rank = number if number != SPARE else NO_RANK
        self.run.core.attach(
            msg.AgentHello(agent, -1, "10.0.0.1", (msg.WorkerInfo(f"{agent}.1", rank, 1, LAUNCH),)), 1.0
        )
        if rank == NO_RANK:
            self.say(number, msg.Warm("2.13"))
            return
        self.say(number, msg.Armed(rank, 2, "gloo", ""))
        self.say(number, msg.ReplicaCheck(0, {}))

    def say(self, number: int, report: Any) -> None:
        agent = next(p.agent for p in self.ledger.pods.values() if p.name == f"llama-{number}")
        self.run.core.receive(agent, msg.FromWorker(f"{agent}.1", report), 1.0)

    def look(self) -> None:
        self.watch.look(self.run)

    def verdicts(self) -> list[tuple[str, str, str]]:
        return [(v.rule, v.action, v.outcome) for v in self.events if isinstance(v, e.HealthVerdict)]

    def moving(self) -> list[tuple[str, int, str]]:
        return [(m.kind, m.rank, m.reason) for m in self.events if isinstance(m, e.MigrationStarted)]


def in_cluster(test: Callable[[Cluster], None], **how: Any) -> None:
    async def run() -> None:
        cluster = Cluster(**how)
        try:
            cluster.look()
            test(cluster)
        finally:
            cluster.run.task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await cluster.run.task

    asyncio.run(run())


def test_a_healthy_node_moves_nobody() -> None:
    def test(c: Cluster) -> None:
        c.ledger.node_changed(node("n1", taints=[{"key": "gpu", "value": "yes", "effect": "NoSchedule"}]), False)
        c.look()
        assert (c.verdicts(), c.moving()) == ([], [])

    in_cluster(test)


CONDITION = [{"type": "KernelDeadlock", "status": "True", "reason": "AUFSUmountHung", "message": "task  hung"}]


@pytest.mark.parametrize(
    ("changed", "rule", "words"),
    [
        (node("n1", unschedulable=True), "node-cordon", "cordon of node n1 on llama-1:0000000"),
        (node("n1", taints=[{"key": "away", "effect": "NoExecute"}]), "node-taint-evicts", "taint away:NoExecute of node n1"),
        (node("n1", conditions=CONDITION), "node-problem", "KernelDeadlock=True of node n1 (AUFSUmountHung: task hung)"),
        (
            node("n1", taints=[{"key": "remediator.kubernetes.azure.com/unschedulable", "effect": "NoSchedule"}]),
            "node-taint-drain",
            "the node is about to be drained",
        ),
    ],
)  # fmt: skip
def test_the_rank_of_a_node_that_has_to_go_moves_with_the_policys_reason(
    changed: dict[str, Any], rule: str, words: str
) -> None:
    def test(c: Cluster) -> None:
        c.ledger.node_changed(changed, False)
        c.look()
        c.look()
        assert c.verdicts() == [(rule, "migrate", "done")]
        ((kind, rank, reason),) = c.moving()
        assert (kind, rank) == ("planned", 1)
        assert words in reason

    in_cluster(test)


def test_a_quarantine_whose_time_is_over_drives_nobody_off() -> None:
    def test(c: Cluster) -> None:
        spec = {"node": "n1", "reason": "a fan", "until": "2020-01-01T00:00:00Z"}
        c.ledger.quarantine_changed({"metadata": {"name": "old"}, "spec": spec}, False)
        assert (c.ledger.why_not("n1"), c.ledger.barred_nodes()) == ("", [])
        now_s = [datetime(2026, 1, 1, tzinfo=timezone.utc).timestamp()]
        c.ledger._wall_s = lambda: now_s[0]
        c.ledger.quarantine_changed(
            {"metadata": {"name": "new"}, "spec": {**spec, "until": "2026-01-01T00:00:01Z"}}, False
        )
        assert ("a fan" in c.ledger.why_not("n1"), c.ledger.barred_nodes()) == (True, ["n1"])
        now_s[0] += 1.0
        c.ledger.drop_old()
        assert (c.ledger.why_not("n1"), c.ledger.barred_nodes()) == ("", [])
        c.look()
        assert c.moving() == []

    in_cluster(test)


def test_a_quarantine_of_one_device_bars_no_node() -> None:
    def test(c: Cluster) -> None:
        spec = {"node": "n1", "device": "GPU-7", "reason": "two XIDs"}
        c.ledger.quarantine_changed({"metadata": {"name": "q"}, "spec": spec}, False)
        assert (c.ledger.why_not("n1"), c.ledger.barred_nodes()) == ("", [])
        c.look()
        assert c.moving() == []
        assert c.verdicts() == [("device-quarantine", "migrate", "refused")]  # no rank of the job uses it

    in_cluster(test)


def test_who_has_cleared_a_node_stands_in_what_the_job_is_told() -> None:
    def test(c: Cluster) -> None:
        meta = {"name": "q", "annotations": {kube.REQUESTED_BY: "alice"}}
        spec = {"node": "n1", "reason": "a fan"}
        c.ledger.quarantine_changed({"metadata": meta, "spec": spec}, False)
        c.look()
        by_bob = {"name": "q", "generation": 2, "annotations": {kube.CHANGED_BY: "2 bob"}}
        c.ledger.quarantine_changed({"metadata": by_bob, "spec": {**spec, "cleared": "a new fan"}}, False)
        c.look()
        (told,) = [cleared for cleared in c.events if isinstance(cleared, e.QuarantineCleared)]
        assert told.reason == "it is over: quarantine (a fan; asked for by alice), cleared by bob: a new fan"

    in_cluster(test)


def test_a_node_in_quarantine_is_left_and_its_spare_is_not_used() -> None:
    def test(c: Cluster) -> None:
        for number in (1, SPARE):
            quarantine = {"metadata": {"name": f"q{number}"}, "spec": {"node": f"n{number}", "reason": "Xid 79 twice"}}
            c.ledger.quarantine_changed(quarantine, False)
        assert "Xid 79 twice" in c.ledger.why_not("n1")
        c.look()
        assert c.moving() == []
        c.ledger.quarantine_changed({"metadata": {"name": "q2"}, "spec": {"node": "n2"}}, True)
        assert c.ledger.why_not("n2") == ""
        c.look()
        c.run.core.tick(2.0)
        c.run.relay._flush()
        assert [(kind, rank) for kind, rank, _ in c.moving()] == [("planned", 1)]

    in_cluster(test)


@pytest.mark.parametrize(
    "change",
    [
        {"deletion": "2026-01-01T00:00:00Z"},
        {"conditions": [{"type": "DisruptionTarget", "status": "True", "reason": "EvictionByEvictionAPI"}]},
    ],
)
def test_a_pod_that_is_to_go_hands_its_rank_over(change: dict[str, Any]) -> None:
    def test(c: Cluster) -> None:
        leaving = pod(1, conditions=change.get("conditions"))
        if "deletion" in change:
            leaving["metadata"]["deletionTimestamp"] = change["deletion"]
        c.take(leaving)
        c.look()
        assert c.verdicts() == [("node-eviction", "migrate", "done")]
        assert [(kind, rank) for kind, rank, _ in c.moving()] == [("planned", 1)]

    in_cluster(test)


def test_a_node_that_does_not_answer_is_no_plan_yet() -> None:
    def test(c: Cluster) -> None:
        unknown = [{"type": "Ready", "status": "Unknown", "reason": "NodeStatusUnknown"}]
        taints = [{"key": "node.kubernetes.io/unreachable", "effect": "NoExecute"}]
        c.ledger.node_changed(node("n1", taints=taints, conditions=unknown), False)
        c.look()
        assert {action for _, action, _ in c.verdicts()} == {"watch"}
        assert (c.moving(), c.ledger.why_not("n1")) == ([], "")

    in_cluster(test)


def test_observe_says_what_it_would_do_and_does_nothing() -> None:
    def test(c: Cluster) -> None:
        c.ledger.node_changed(node("n1", unschedulable=True), False)
        c.look()
        assert (c.verdicts(), c.moving()) == ([("node-cordon", "migrate", "observed")], [])
        assert c.ledger.why_not("n1") == ""

    in_cluster(test, policy=dataclasses.replace(POLICY, observe=True))


def test_a_job_that_is_to_be_observed_is_told_what_would_be_done_also_after_the_policy_has_changed() -> None:
    def test(c: Cluster) -> None:
        c.ledger.take_policy(POLICY)
        c.ledger.node_changed(node("n1", unschedulable=True), False)
        c.look()
        assert (c.verdicts(), c.moving()) == ([("node-cordon", "migrate", "observed")], [])
        told = [t for t in c.run.story.kube_events if t.reason == "Observed"]
        assert [t.message.partition(":")[0] for t in told] == ["would migrate rank 1"]

    in_cluster(test, options=PodAnnotations(policy="observe"))


def test_a_policy_that_is_changed_counts_for_jobs_that_run() -> None:
    def test(c: Cluster) -> None:
        c.ledger.take_policy(dataclasses.replace(POLICY, observe=True))
        c.ledger.node_changed(node("n1", unschedulable=True), False)
        c.look()
        assert c.verdicts() == [("node-cordon", "migrate", "observed")]

    in_cluster(test)


def test_a_cordon_before_there_is_a_spare_is_not_forgotten_and_one_that_is_taken_back_is() -> None:
    def test(c: Cluster) -> None:
        c.ledger.node_changed(node("n1", unschedulable=True), False)
        c.look()
        (told,) = [m.reason for m in c.events if isinstance(m, e.MoveNotMade)]
        assert told.startswith("there is no spare")
        c.ledger.node_changed(node("n0", unschedulable=True), False)
        c.look()
        c.ledger.node_changed(node("n0"), False)
        c.look()
        c.add(SPARE)
        c.run.core.tick(2.0)
        c.run.relay._flush()
        assert [(kind, rank) for kind, rank, _ in c.moving()] == [("planned", 1)]
        assert not c.run.core._parts.planned_moves.is_wanted(0)

    in_cluster(test, spare=False)


def test_taints_that_a_pod_came_to_are_tolerated_and_nothing_is_told_before_nodes_are_known() -> None:
    def test(c: Cluster) -> None:
        c.add(SPARE)
        c.ledger.node_changed(node("n2"), True)
        c.nodes.listed.clear()
        c.look()
        c.ledger.node_changed(node("n2", taints=[{"key": "dedicated", "effect": "NoExecute"}]), False)
        c.look()
        c.nodes.listed.set()
        c.look()
        assert (c.verdicts(), c.moving()) == ([], [])

    in_cluster(test, spare=False)


def test_nodes_that_cannot_be_listed_are_a_dead_source_once() -> None:
    def test(c: Cluster) -> None:
        c.nodes.broken = "connection refused"
        c.look()
        c.look()
        dead = [v for v in c.events if isinstance(v, e.HealthVerdict)]
        assert [(v.rule, v.action) for v in dead] == [("source-dead", "watch")] * 3, "of each agent's node"
        assert "connection refused" in dead[0].reason
        assert [len(kept) for kept in c.run.core.health.judge.history.subjects(k.SOURCE_DEAD)] == [1] * 3

    in_cluster(test)


def test_the_taint_of_a_cordon_is_not_told_beside_it() -> None:
    taint = {"key": "node.kubernetes.io/unschedulable", "effect": "NoSchedule"}
    facts = read_node(node("n1", unschedulable=True, taints=[taint]))
    assert (facts.cordoned, facts.taints) == (True, ())


def test_the_policy_of_the_controllers_environment_judges_every_job(tmp_path: Path) -> None:
    path = tmp_path / "policy.yaml"
    path.write_text("rules: {lost: {signal: gpu-lost, verdict: replace, why: w, source: s}}")
    environ = {"TORCHRELAY_HEALTH_POLICY": str(path), "TORCHRELAY_HEALTH_OBSERVE": "1"}

    async def test() -> None:
        api: Any = FakeApi()
        authority = Credentials.from_secret(b"s" * 16, "c")
        controller = Controller(api, ClusterSettings.from_environ(environ), authority, Pulse())
        ledger = controller._ledger
        first = read_pod(pod(0))
        assert first is not None
        ledger.pods[first.uid] = first
        hello = msg.AgentHello(
            first.agent, -1, "10.0.0.1", (msg.WorkerInfo(f"{first.agent}.1", 0, 1, {**LAUNCH, "WORLD_SIZE": "1"}),)
        )
        run = await ledger.run_for(PodIdentity("team", "llama-0", first.uid), hello)
        judged_by = run.core.health.judge.policy
        assert ([r.name for r in judged_by.rules], judged_by.observe) == (["lost"], True)
        run.task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await run.task

    asyncio.run(test())
