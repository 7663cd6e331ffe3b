"""Ranks that have to go are moved while they live: no step is done again."""

from __future__ import annotations

import signal
import subprocess
from pathlib import Path

import pytest
from support.kubectl import wait_for
from support.training import differences
from support.training_pods import NODES, Training

STEP = 30


@pytest.mark.core
def test_a_migration_that_a_person_creates(training: Training, undisturbed: Path) -> None:
    training.held = (STEP,)
    training.start()
    training.wait_until_ready()
    manifest = {
        "apiVersion": "torchrelay.dev/v1alpha1",
        "kind": "Migration",
        "metadata": {"name": f"{training.name}-wish", "namespace": "default"},
        "spec": {"job": training.name, "pod": f"{training.name}-1", "reason": "its fan is loud"},
    }
    training.kubectl.create(manifest)
    training.wait_for_phase("quiesce")
    training.let_pass(STEP)
    (migration,) = training.wait_for_migration()
    training.wait_until_succeeded()
    assert differences(undisturbed, training.out, training.world_size) == []
    assert (migration["kind"], migration["rank"], migration["stepsRedone"]) == ("planned", 1, 0)
    status = training.kubectl.get("migration", f"{training.name}-wish")["status"]
    assert status["toPod"] == migration["toPod"]
    assert f"{training.name}-1" not in training.pods() or training.pods()[f"{training.name}-1"]["metadata"].get(
        "deletionTimestamp"
    )


def test_a_migration_of_a_rank_that_there_is_not(training: Training) -> None:
    training.held = (STEP,)
    training.start()
    training.wait_until_ready()
    manifest = {
        "apiVersion": "torchrelay.dev/v1alpha1",
        "kind": "Migration",
        "metadata": {"name": f"{training.name}-wish", "namespace": "default"},
        "spec": {"job": training.name, "rank": 7},
    }
    training.kubectl.create(manifest)
    (migration,) = training.wait_for_migration("refused", 20.0)
    assert "ranks 0 to 1" in migration["reason"]
    training.let_pass(STEP)
    training.wait_until_succeeded()


def test_a_pod_that_is_deleted(training: Training, undisturbed: Path) -> None:
    """Its process gets SIGTERM, and lives on until the rank has moved."""
    training.held = (STEP,)
    training.start()
    training.wait_until_ready()
    training.wait_until_held(STEP)
    training.kubectl("delete", "pod", f"{training.name}-1", "--wait=false")
    training.wait_for_phase("quiesce")
    training.let_pass(STEP)
    (migration,) = training.wait_for_migration()
    training.wait_until_succeeded()
    assert differences(undisturbed, training.out, training.world_size) == []
    assert (migration["kind"], migration["rank"], migration["stepsRedone"]) == ("planned", 1, 0)
    told = str(migration)
    assert "is being deleted" in told or "SIGTERM" in told, migration  # whichever is heard of first


def test_a_process_that_is_told_to_end(training: Training, undisturbed: Path) -> None:
    """By something that tells the cluster nothing, such as a node that shuts down."""
    training.held = (STEP,)
    training.start()
    training.wait_until_ready()
    training.wait_until_held(STEP)
    training.signal(f"{training.name}-1", signal.SIGTERM)
    training.wait_for_phase("quiesce")
    training.let_pass(STEP)
    (migration,) = training.wait_for_migration()
    training.wait_until_succeeded()
    assert differences(undisturbed, training.out, training.world_size) == []
    assert (migration["kind"], migration["rank"], migration["stepsRedone"]) == ("planned", 1, 0)
    assert "SIGTERM" in str(migration), migration


def test_a_cordoned_node(training: Training, undisturbed: Path) -> None:
    training.held = (STEP,)
    training.nodes = NODES[:2]
    training.start()
    training.wait_until_ready()
    training.kubectl("cordon", NODES[1])
    try:
        training.wait_for_phase("quiesce")
        training.let_pass(STEP)
        (migration,) = training.wait_for_migration()
    finally:
        training.kubectl("uncordon", NODES[1])
    training.wait_until_succeeded()
    assert differences(undisturbed, training.out, training.world_size) == []
    assert (migration["kind"], migration["rank"], migration["stepsRedone"]) == ("planned", 1, 0)
    assert f"cordon of node {NODES[1]}" in str(migration["decisions"] + [migration["reason"]]), migration


@pytest.mark.core
def test_a_drain_waits_until_the_rank_has_moved(training: Training, undisturbed: Path) -> None:
    training.held = (STEP,)
    training.nodes = NODES[:2]
    training.start()
    training.wait_until_ready()
    training.wait_until_held(STEP)
    wait_for("a budget", lambda: training.kubectl.items("pdb") or None, 20.0, training.describe)
    chosen = f"--pod-selector=torchrelay.dev/job={training.name}"
    command = ["kubectl", "drain", NODES[1], chosen, "--force", "--delete-emptydir-data", "--timeout=120s"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as drain:
        try:
            training.wait_for_phase("quiesce")
            pod = training.pods()[f"{training.name}-1"]
            assert "deletionTimestamp" not in pod["metadata"]
            training.let_pass(STEP)
            (migration,) = training.wait_for_migration()
            said, _ = drain.communicate(timeout=120)
        finally:
            drain.kill()
            training.kubectl("uncordon", NODES[1])
    assert drain.returncode == 0, said
    assert "disruption budget" in said
    training.wait_until_succeeded()
    assert differences(undisturbed, training.out, training.world_size) == []
    assert (migration["kind"], migration["rank"], migration["stepsRedone"]) == ("planned", 1, 0)
    described = training.kubectl("describe", "trainingjob", training.name)
    for reason in ("MigrationStarted", "MigrationCommitted", f"cordon of node {NODES[1]}"):
        assert reason in described
