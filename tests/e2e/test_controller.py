"""The controller dies, and the one that comes after it looks after jobs that train already."""

from __future__ import annotations

import signal
from pathlib import Path

from support.kube_install import Installation
from support.kubectl import wait_for
from support.training import differences
from support.training_pods import Training

STEP = 20


def test_a_loss_after_the_controller_was_killed(
    training: Training, torchrelay: Installation, undisturbed: Path
) -> None:
    training.held = (STEP,)
    training.start()
    training.wait_until_ready()
    torchrelay.kill_controller()
    training.wait_until_adopted()
    training.signal(f"{training.name}-1", signal.SIGKILL)
    training.let_pass(STEP)
    (migration,) = training.wait_for_migration()
    training.wait_until_succeeded()
    assert differences(undisturbed, training.out, training.world_size) == []
    assert (migration["kind"], migration["rank"]) == ("unplanned", 1)


def test_a_worker_lost_while_no_controller_is_there(
    training: Training, torchrelay: Installation, undisturbed: Path
) -> None:
    training.held = (STEP,)
    training.start()
    training.wait_until_ready()
    torchrelay.scale(0)
    training.signal(f"{training.name}-1", signal.SIGKILL)
    training.let_pass(STEP)
    torchrelay.restore()
    (migration,) = training.wait_for_migration()
    training.wait_until_succeeded()
    assert differences(undisturbed, training.out, training.world_size) == []
    assert (migration["kind"], migration["rank"]) == ("unplanned", 1)


def test_a_pod_lost_while_no_controller_is_there(
    training: Training, torchrelay: Installation, undisturbed: Path
) -> None:
    training.held = (STEP,)
    training.start()
    training.wait_until_ready()
    torchrelay.scale(0)
    training.kubectl("delete", "pod", f"{training.name}-1", "--force", "--grace-period=0")
    training.let_pass(STEP)
    torchrelay.restore()
    (migration,) = training.wait_for_migration()
    training.wait_until_succeeded()
    assert differences(undisturbed, training.out, training.world_size) == []
    assert migration["rank"] == 1
    assert "while no controller was there" in migration["reason"], migration


def test_of_two_replicas_another_one_takes_over(
    training: Training, torchrelay: Installation, undisturbed: Path
) -> None:
    training.held = (STEP,)
    training.start()
    training.wait_until_ready()
    leader = torchrelay.leader()
    assert leader in torchrelay.ready_pods()
    assert len(torchrelay.ready_pods()) == 2
    torchrelay.delete_pod(leader)
    # The one that waited, or the one that was made for the dead one: whoever looks first when the lease is over.
    wait_for("another leader", lambda: torchrelay.leader() not in ("", leader) or None, 60.0, torchrelay.logs)
    training.wait_until_adopted()
    training.signal(f"{training.name}-1", signal.SIGKILL)
    training.let_pass(STEP)
    (migration,) = training.wait_for_migration()
    training.wait_until_succeeded()
    assert differences(undisturbed, training.out, training.world_size) == []
    assert (migration["kind"], migration["rank"]) == ("unplanned", 1)
