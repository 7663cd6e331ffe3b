"""Whole nodes are lost. They need the test cluster: any other cannot be unplugged from here."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.kubectl import Kubectl, wait_for
from support.own_cluster import cluster, needs_test_cluster
from support.training import differences
from support.training_pods import Training

STEP = 20

pytestmark = needs_test_cluster


@pytest.fixture
def _node_2_comes_back() -> Iterator[None]:
    yield
    cluster("node-start", "2")
    cluster("node-heal", "2")


@pytest.fixture
def _nodes_2_and_3_come_back() -> Iterator[None]:
    yield
    for number in "23":
        cluster("node-start", number)


@pytest.fixture
def _two_more_nodes(kubectl: Kubectl) -> Iterator[None]:
    """Besides the first three, of which two may be lost."""
    cluster("up", "--nodes", "5")
    yield
    for number in "45":
        cluster("node-kill", number)
        kubectl("delete", "node", f"node-{number}")
    cluster("node-start", "2")


@pytest.fixture
def three_ranks(training: Training) -> Training:
    training.world_size, training.spares = 3, 2
    training.nodes = ("node-2", "node-1", "node-4")  # copies of journals are on the next one: 3 and 5
    training.held = (STEP,)
    return training


@pytest.mark.usefixtures("_node_2_comes_back")
def test_a_node_that_loses_power(training: Training, undisturbed: Path) -> None:
    training.held = (STEP,)
    training.nodes = ("node-1", "node-2")
    training.start()
    training.wait_until_ready()
    spares = {n: p for n, p in training.pods().items() if "-spare-" in n}
    assert {p["spec"]["nodeName"] for p in spares.values()} == {"node-3"}
    cluster("node-kill", "2")
    training.let_pass(STEP)
    (migration,) = training.wait_for_migration()
    training.wait_until_succeeded()
    assert differences(undisturbed, training.out, training.world_size) == []
    assert (migration["kind"], migration["rank"]) == ("unplanned", 1)
    assert migration["toPod"] in spares


@pytest.mark.core
@pytest.mark.usefixtures("_node_2_comes_back")
def test_a_partitioned_node_and_its_return(training: Training, undisturbed: Path) -> None:
    training.held = (STEP, STEP + 10)
    training.nodes = ("node-1", "node-2")
    training.start()
    training.wait_until_ready()
    cluster("node-partition", "2")
    training.let_pass(STEP)
    (migration,) = training.wait_for_migration()
    assert (migration["kind"], migration["rank"]) == ("unplanned", 1)
    cluster("node-heal", "2")
    wait_for("the end of the fenced rank", lambda: _has_ended(training), 60.0, training.describe)
    training.let_pass(STEP + 10)
    training.wait_until_succeeded()
    assert differences(undisturbed, training.out, training.world_size) == []
    assert training.resource()["ranks"][1]["pod"] == migration["toPod"]


@pytest.mark.usefixtures("_node_2_comes_back")
def test_a_node_stays_away_for_longer_than_the_grace_and_then_returns(training: Training, undisturbed: Path) -> None:
    training.held = (STEP, STEP + 10)
    training.nodes = ("node-1", "node-2")
    training.start()
    training.wait_until_ready()
    cut_off = f"{training.name}-1"
    uid = training.pods()[cut_off]["metadata"]["uid"]
    cluster("node-partition", "2")
    training.let_pass(STEP)
    (migration,) = training.wait_for_migration()
    assert (migration["kind"], migration["rank"]) == ("unplanned", 1)

    def given_up() -> bool | None:
        return True if uid not in {p["metadata"]["uid"] for p in training.pods().values()} else None

    # The node's kubelet cannot confirm anything: it is by force that the pod goes from the API.
    wait_for("the end of the pod in the API", given_up, 120.0, training.describe)
    (fenced,) = training.processes_here(cut_off)  # and there, behind the cut, it lives
    cluster("node-heal", "2")
    wait_for("its end", lambda: None if Path(f"/proc/{fenced}").exists() else True, 60.0, training.describe)
    training.let_pass(STEP + 10)
    training.wait_until_succeeded()
    assert differences(undisturbed, training.out, training.world_size) == []
    assert training.resource()["ranks"][1]["pod"] == migration["toPod"]
    assert len(training.wait_for_migration()) == 1


@pytest.mark.usefixtures("_two_more_nodes")
def test_two_nodes_at_once(three_ranks: Training, kubectl: Kubectl, tmp_path: Path) -> None:
    reference = Training(kubectl, "three-ranks", tmp_path / "reference", protected=False)
    reference.out.mkdir()
    reference.world_size = three_ranks.world_size
    reference.start()
    reference.wait_until_succeeded()
    reference.delete()
    three_ranks.start()
    three_ranks.wait_until_ready()
    spares = {n: p["spec"]["nodeName"] for n, p in three_ranks.pods().items() if "-spare-" in n}
    assert set(spares.values()) == {"node-3", "node-5"}
    cluster("node-kill", "2")
    cluster("node-kill", "4")
    three_ranks.let_pass(STEP)
    migrations = three_ranks.wait_for_migration(count=1)
    three_ranks.wait_until_succeeded()
    assert differences(reference.out, three_ranks.out, three_ranks.world_size) == []
    ranks = three_ranks.resource()["ranks"]
    assert {ranks[0]["pod"], ranks[2]["pod"]} == set(spares)
    assert all(m["kind"] == "unplanned" for m in migrations)


@pytest.mark.usefixtures("_nodes_2_and_3_come_back")
def test_a_node_and_the_one_that_has_its_journals_at_once(training: Training, kubectl: Kubectl, tmp_path: Path) -> None:
    reference = Training(kubectl, "three-that-save", tmp_path / "reference", protected=False)
    reference.out.mkdir()
    for job in (reference, training):
        job.world_size, job.script = 3, "saving.py"
    reference.start()
    reference.wait_until_succeeded()
    reference.delete()
    training.nodes, training.spares, training.held = ("node-1", "node-2", "node-3"), 0, (STEP + 5,)
    training.asked = {"checkpoint-dir": f"{training.out}/checkpoints"}
    training.start()
    training.wait_until_ready()
    training.wait_until_held(STEP + 5)
    cluster("node-kill", "2")
    cluster("node-kill", "3")
    training.let_pass(STEP + 5)

    def fallen() -> list[dict[str, Any]] | None:
        return [m for m in training.migrations() if len(m.get("rungs", ())) > 2] or None

    (migration, *_) = wait_for("a migration with rungs", fallen, 90.0, training.describe)
    told = {r["rung"]: (r["outcome"], r["reason"]) for r in migration["rungs"]}
    assert told["next-spare"][0] == told["jit-checkpoint"][0] == "refused", told
    assert told["checkpoint"][0] == "taken", told
    assert f"step-{STEP}.pt is the newest whole" in told["checkpoint"][1], told
    training.wait_until_succeeded()
    assert differences(reference.out, training.out, training.world_size) == []
    assert [(training.out / f"began-{rank}").read_text() for rank in range(3)] == [str(STEP)] * 3


def _has_ended(training: Training) -> bool | None:
    pod = training.pods().get(f"{training.name}-1")
    if pod is None:
        return True
    states = {s["name"]: s["state"] for s in pod["status"].get("containerStatuses", ())}
    return True if "terminated" in states.get("train", {}) else None
