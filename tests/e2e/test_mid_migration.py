"""The controller dies in the middle of a migration: the next one finishes it, takes it back, or begins it anew."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import Any

import pytest
from support.kube_install import Installation
from support.kubectl import wait_for
from support.training import differences
from support.training_pods import Training

STEP = 20


def closed(training: Training, name: str) -> dict[str, Any]:
    """What the resource of the migration that was interrupted says in the end."""

    def over() -> dict[str, Any] | None:
        status = training.kubectl.get("migration", name).get("status") or {}
        return status if status.get("outcome") else None

    return wait_for(f"the end of {name}", over, 90.0, training.describe)


@pytest.mark.core
def test_while_the_survivors_of_a_loss_are_awaited(
    training: Training, torchrelay: Installation, undisturbed: Path
) -> None:
    training.held = (STEP,)
    training.start()
    training.wait_until_ready()
    training.wait_until_held(STEP)
    training.signal(f"{training.name}-1", signal.SIGKILL)
    training.wait_for_phase("quiesce")
    (interrupted,) = training.migration_names()
    torchrelay.kill_controller()
    training.wait_until_adopted()  # not before: the one that dies may last a moment
    training.let_pass(STEP)
    (migration,) = training.wait_for_migration(within_s=150.0)
    training.wait_until_succeeded()
    assert differences(undisturbed, training.out, training.world_size) == []
    assert (migration["kind"], migration["rank"]) == ("unplanned", 1)
    assert len(training.migration_names()) == 2
    assert closed(training, interrupted)["outcome"] == "abandoned"


def test_while_ranks_are_on_their_way_to_where_a_planned_one_stops_them(
    training: Training, torchrelay: Installation, undisturbed: Path
) -> None:
    training.held = (STEP,)
    training.start()
    training.wait_until_ready()
    training.wait_until_held(STEP)
    wish = {
        "apiVersion": "torchrelay.dev/v1alpha1",
        "kind": "Migration",
        "metadata": {"name": f"{training.name}-wish", "namespace": "default"},
        "spec": {"job": training.name, "rank": 1},
    }
    training.kubectl.create(wish)
    training.wait_for_phase("quiesce")
    torchrelay.kill_controller()
    training.wait_until_adopted()
    training.let_pass(STEP)
    training.wait_until_succeeded()
    assert differences(undisturbed, training.out, training.world_size) == []
    # The wish still holds: it is begun anew, and done unless the job is over before a new spare is warm.
    assert closed(training, f"{training.name}-wish")["kind"] == "planned"
