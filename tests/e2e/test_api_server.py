"""The API server is away for a minute: training and migrations go on, and what happened is written down afterwards."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.kube_install import Installation
from support.kubectl import wait_for
from support.own_cluster import cluster, needs_test_cluster
from support.training import differences
from support.training_pods import Training

AWAY_S = 60.0
STEP, LATER = 15, 25

pytestmark = needs_test_cluster


@pytest.fixture
def _it_comes_back() -> Iterator[None]:
    yield
    cluster("api-thaw")


@pytest.mark.usefixtures("_it_comes_back")
def test_a_rank_is_lost_while_the_api_server_is_away(
    training: Training, torchrelay: Installation, undisturbed: Path
) -> None:
    training.held = (STEP, LATER)
    training.start()
    training.wait_until_ready()
    training.wait_until_held(STEP)
    leader, lost = torchrelay.leader(), f"{training.name}-1"
    (trainer,) = training.processes_here(lost)
    cluster("api-freeze")
    frozen_s = time.monotonic()
    os.kill(trainer, signal.SIGKILL)
    training.let_pass(STEP)
    training.wait_until_held_here(LATER)
    wait_for("the end of the minute", lambda: time.monotonic() - frozen_s >= AWAY_S or None, AWAY_S + 1.0)
    cluster("api-thaw")
    (first,) = training.wait_for_migration()
    assert (first["kind"], first["rank"], first["fromPod"], first["stepsRedone"]) == ("unplanned", 1, lost, 1)
    # All is as before: the same controller leads, makes a new spare, and sees to the next loss.
    training.wait_until_ready()
    assert torchrelay.leader() == leader
    training.signal(first["toPod"], signal.SIGKILL)
    training.let_pass(LATER)
    _, second = training.wait_for_migration(count=2)
    training.wait_until_succeeded()
    assert differences(undisturbed, training.out, training.world_size) == []
    assert second["fromPod"] == first["toPod"]
