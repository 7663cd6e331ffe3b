"""Ranks are lost in pods: a spare pod takes over, and the job ends with the same weights, bit for bit."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest
from support.training import differences
from support.training_pods import NODES, Training

STEP = 20


@pytest.mark.core
def test_a_killed_worker(training: Training, undisturbed: Path) -> None:
    training.held, training.nodes = (STEP,), NODES[: training.world_size]  # on one node alone they are partly protected
    training.start()
    training.wait_until_ready()
    for condition in ("Protected", "SparesReady", "Degraded=false"):
        training.kubectl("wait", f"--for=condition={condition}", f"trainingjob/{training.name}", "--timeout=20s")
    training.signal(f"{training.name}-1", signal.SIGKILL)
    training.let_pass(STEP)
    (migration,) = training.wait_for_migration()
    training.wait_until_succeeded()
    assert differences(undisturbed, training.out, training.world_size) == []
    assert migration["kind"] == "unplanned"
    assert migration["rank"] == 1
    assert migration["fromPod"] == f"{training.name}-1"
    assert "-spare-" in migration["toPod"]
    assert "SIGKILL" in str(migration["decisions"] + [migration["reason"]]), migration
    phases = [p["phase"] for p in migration["phases"]]
    assert phases[-1] == "first_step", migration


@pytest.mark.core
def test_a_pod_deleted_with_force(training: Training, undisturbed: Path) -> None:
    training.held = (STEP,)
    training.start()
    training.wait_until_ready()
    training.delete_by_force(f"{training.name}-0")
    training.let_pass(STEP)
    (migration,) = training.wait_for_migration()
    training.wait_until_succeeded()
    assert differences(undisturbed, training.out, training.world_size) == []
    assert (migration["kind"], migration["rank"]) == ("unplanned", 0)


@pytest.mark.core
def test_a_stopped_trainer(training: Training, undisturbed: Path) -> None:
    training.held = (STEP,)
    training.start()
    training.wait_until_ready()
    training.signal(f"{training.name}-1", signal.SIGSTOP)
    training.let_pass(STEP)
    (migration,) = training.wait_for_migration()
    training.wait_until_succeeded()
    assert differences(undisturbed, training.out, training.world_size) == []
    assert (migration["kind"], migration["rank"]) == ("unplanned", 1)
    assert "stopped" in str(migration["decisions"]), migration


def test_two_losses_and_a_new_spare_between(training: Training, undisturbed: Path) -> None:
    training.held = (STEP, STEP + 10)
    training.start()
    training.wait_until_ready()
    training.signal(f"{training.name}-1", signal.SIGKILL)
    training.let_pass(STEP)
    (first,) = training.wait_for_migration()
    training.wait_until_ready()
    training.signal(first["toPod"], signal.SIGKILL)
    training.let_pass(STEP + 10)
    _, second = training.wait_for_migration(count=2)
    training.wait_until_succeeded()
    assert differences(undisturbed, training.out, training.world_size) == []
    assert second["fromPod"] == first["toPod"]
    assert second["generation"] > first["generation"]
