"""Whole nodes are lost. They need the test cluster: any other cannot be unplugged from here."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from support.kubectl import wait_for
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


def _has_ended(training: Training) -> bool | None:
    pod = training.pods().get(f"{training.name}-1")
    if pod is None:
        return True
    states = {s["name"]: s["state"] for s in pod["status"].get("containerStatuses", ())}
    return True if "terminated" in states.get("train", {}) else None
