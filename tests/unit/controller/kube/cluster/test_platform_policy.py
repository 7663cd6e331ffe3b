"""What a platform team allows the jobs of a cluster: read, refused in words, and kept to."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from support.kube_world import KEY, World, in_world, manifest

from torchrelay.controller.kube.client.api import SPARE_POOLS, TRAINING_JOBS
from torchrelay.controller.kube.cluster.platform_policy import (
    NamespaceLimits,
    PlatformPolicy,
    parse_platform_policy,
    read_platform_policy,
)
from torchrelay.protocol.errors import UserError
from torchrelay.protocol.kube import kube_names as kube
from torchrelay.protocol.kube.annotations import PodAnnotations

TEXT = """
namespaces:
  '*': {mostSparesPerJob: 2}
  team: {spares: 0, mostSparesPerJob: 4, mostSpares: 6, mode: planned-only}
mostSpares: 100
neverTouchNodes: {role: storage}
mostQuarantinedNodes: 2
"""


def test_a_namespace_without_a_row_has_that_of_all() -> None:
    policy = PlatformPolicy({"*": NamespaceLimits(most_spares_per_job=2), "team": NamespaceLimits(4, 4)})
    assert policy.of("other").most_spares_per_job == 2
    assert policy.of("team").spares == 4
    assert PlatformPolicy().of("other") == NamespaceLimits()


def test_a_policy_is_read(tmp_path: Path) -> None:
    path = tmp_path / "policy.yaml"
    path.write_text(TEXT)
    policy = read_platform_policy(str(path))
    assert policy.of("team") == NamespaceLimits(0, 4, 6, "planned-only")
    assert (policy.most_spares, policy.untouched) == (100, (("role", "storage"),))
    assert policy.most_quarantined_nodes == 2
    assert read_platform_policy("") == PlatformPolicy()


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ([], "is no table; give mostQuarantinedNodes, mostSpares, namespaces, neverTouchNodes"),
        ({"mostspares": 3}, "unknown key 'mostspares'"),
        ({"namespaces": {"a": {"spares": -1}}}, "namespaces: a: spares is -1; give a whole number from 0"),
        ({"namespaces": {"a": {"spares": True}}}, "spares is True"),
        ({"namespaces": {"a": {"mode": "off"}}}, "mode is 'off'; give one of auto, planned-only, observe"),
        ({"namespaces": {"a": {"mostSparesPerJob": 0}}}, "spares is 1, more than mostSparesPerJob (0)"),
        ({"namespaces": {"a": 3}}, "namespaces: a: is no table"),
        ({"neverTouchNodes": {"role": 1}}, "role is no text; put the label's value into quotes"),
    ],
)
def test_what_cannot_be_meant_is_named(values: Any, words: str) -> None:
    with pytest.raises(UserError) as refused:
        parse_platform_policy("p.yaml", values)
    assert words in str(refused.value)


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    (tmp_path / "broken.yaml").write_text("a: [")
    for path in (tmp_path / "missing.yaml", tmp_path / "broken.yaml"):
        with pytest.raises(UserError, match=r"(missing|broken)\.yaml cannot be read"):
            read_platform_policy(str(path))


@pytest.mark.parametrize(
    ("asked", "mode", "gets", "reason"),
    [
        ("observe", "auto", "observe", ""),
        ("auto", "observe", "observe", "it asks for auto, and namespace team allows observe"),
        ("planned-only", "observe", "observe", "it asks for planned-only, and namespace team allows observe"),
        ("auto", "planned-only", "planned-only", "it asks for auto, and namespace team allows planned-only"),
        ("planned-only", "planned-only", "planned-only", ""),
    ],
)
def test_the_more_careful_of_job_and_namespace_counts(asked: str, mode: str, gets: str, reason: str) -> None:
    policy = PlatformPolicy({"team": NamespaceLimits(mode=mode)})
    bounded = policy.bounded("team", {}, PodAnnotations(policy=asked))
    assert (bounded.options.policy, bounded.reason) == (gets, reason)


def test_a_job_gets_as_many_spares_as_it_may_have_and_a_default_where_it_does_not_say() -> None:
    policy = PlatformPolicy({"team": NamespaceLimits(spares=3, most_spares_per_job=4)})
    asks = policy.bounded("team", {kube.SPARES: "9"}, PodAnnotations(spares=9))
    assert (asks.options.spares, asks.reason) == (4, "it asks for 9 spares, and jobs of namespace team may have 4")
    assert policy.bounded("team", {kube.SPARES: "2"}, PodAnnotations(spares=2)).options.spares == 2
    assert policy.bounded("team", {}, PodAnnotations()).options.spares == 3
    assert (
        policy.bounded("team", {kube.SPARES: "pool"}, PodAnnotations(spares=None, pool="pool")).options.spares is None
    )


@pytest.mark.parametrize(
    ("team", "cluster", "asked", "count", "word"),
    [
        (None, None, 3, 3, ""),
        (5, None, 3, 3, ""),
        (5, None, 4, 3, "namespace team has 2 of the 5"),
        (5, 8, 4, 1, "the cluster has 7 of the 8"),
        (1, None, 1, 0, "namespace team has 2 of the 1"),
    ],
)
def test_budgets_of_the_namespace_and_of_the_cluster_are_kept(
    team: int | None, cluster: int | None, asked: int, count: int, word: str
) -> None:
    policy = PlatformPolicy({"team": NamespaceLimits(most_spares=team)}, most_spares=cluster)
    allowed = policy.allowed("team", asked, in_namespace=2, in_cluster=7)
    assert allowed.pods == count
    assert word in allowed.reason
    assert policy.has_budget("team") is (team is not None or cluster is not None)


def test_a_job_that_asks_for_more_gets_what_its_namespace_may_have_and_its_pool_says_why() -> None:
    async def test(w: World) -> None:
        limits = NamespaceLimits(most_spares_per_job=2, mode="planned-only")
        w.ledger.platform = PlatformPolicy({"team": limits})
        for rank in range(2):
            pod = manifest(f"llama-{rank}")
            pod["metadata"]["annotations"][kube.SPARES] = "5"
            w.add(pod)
        w.begin()
        await w.keeper.tend(w.run)
        assert len(w.spares()) == 2
        spec = w.api.named(TRAINING_JOBS, "llama")["spec"]
        assert (spec["spares"], spec["policy"]) == (2, "planned-only")
        trouble = w.api.named(SPARE_POOLS, "llama")["status"]["trouble"]
        assert trouble.startswith("it asks for 5 spares, and jobs of namespace team may have 2")

    in_world(test)


def test_a_person_who_raises_the_number_of_a_pool_gets_no_more_than_a_job_may_have() -> None:
    async def test(w: World) -> None:
        w.ledger.platform = PlatformPolicy({"team": NamespaceLimits(most_spares_per_job=2)})
        w.begin()
        await w.keeper.tend(w.run)
        w.api.named(SPARE_POOLS, "llama")["spec"]["spares"] = 7
        await w.keeper.tend(w.run)
        assert len(w.spares()) == 2

    in_world(test)


def test_a_spare_over_the_budget_is_not_made_until_another_job_s_is_gone() -> None:
    async def test(w: World) -> None:
        w.ledger.platform = PlatformPolicy(most_spares=1)
        other = manifest("other-7")
        other["metadata"]["labels"] = {kube.JOB: "other", kube.ROLE: kube.SPARE}
        other["metadata"]["namespace"] = "elsewhere"
        pod = w.add(other)
        assert pod.is_spare
        assert pod.key != KEY
        w.begin()
        await w.keeper.tend(w.run)
        assert w.spares() == []
        trouble = w.api.named(SPARE_POOLS, "llama")["status"]["trouble"]
        assert trouble == "1 spares are missing, and the cluster has 1 of the 1 that it may have"
        del w.ledger.pods[pod.uid]
        await w.keeper.tend(w.run)
        assert w.spares() == [], "a job that has to wait counts the spares of all jobs at each look"
        w.keeper._held_back.clear()  # its time is over
        await w.keeper.tend(w.run)
        assert len(w.spares()) == 1

    in_world(test)


def test_what_the_cluster_says_of_a_node_that_is_not_to_be_touched_moves_nobody() -> None:
    async def test(w: World) -> None:
        w.ledger.platform = PlatformPolicy(untouched=(("role", "storage"),))
        for name, role in (("n0", "storage"), ("n1", "train")):
            node = {"metadata": {"name": name, "labels": {"role": role}}, "spec": {"unschedulable": True}}
            w.ledger.node_changed(node, False)
        assert w.ledger.why_not("n0") == ""
        assert "cordon" in w.ledger.why_not("n1")

    in_world(test)


def test_no_more_nodes_are_barred_at_once_than_may_be() -> None:
    policy = PlatformPolicy(most_quarantined_nodes=2)
    assert policy.why_not_quarantined("n3", ["n1"]) == ""
    assert "nodes in quarantine: 2, of at most 2 at once" in policy.why_not_quarantined("n3", ["n1", "n2"])
    assert policy.why_not_quarantined("n1", ["n1", "n2"]) == "", "it is barred already"
    assert PlatformPolicy().why_not_quarantined("n9", [f"n{i}" for i in range(9)]) == ""


def test_nodes_that_jobs_and_people_have_barred_count_as_machines() -> None:
    async def test(w: World) -> None:
        w.ledger.platform = PlatformPolicy(most_quarantined_nodes=1)
        w.begin()
        job, agent = w.run.core.job, next(iter(w.run.core.job.nodes))
        job.machines[agent] = "n0"
        may_not = w.run.core.health.why_not_quarantined
        assert may_not(agent) == ""
        w.ledger.quarantine_changed({"metadata": {"name": "fan"}, "spec": {"node": "n7"}}, False)
        assert "nodes in quarantine: 1, of at most 1" in may_not(agent)
        w.ledger.quarantine_changed({"metadata": {"name": "fan"}, "spec": {"node": "n7"}}, True)
        job.quarantine[agent] = "a fault"
        assert may_not(agent) == "", "it is barred already"
        assert "nodes in quarantine: 1, of at most 1" in may_not("another")

    in_world(test)
