"""torchrelay itself is replaced, pod by pod, while a job trains: as `helm upgrade` does it."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest
from support.kube_install import Installation
from support.training import differences
from support.training_pods import Training

STEP, LATER = 15, 25


def test_a_rank_is_lost_after_an_upgrade(training: Training, torchrelay: Installation, undisturbed: Path) -> None:
    training.held = (STEP,)
    training.start()
    training.wait_until_ready()
    old = torchrelay.ready_pods()
    torchrelay.begin_upgrade()
    torchrelay.wait_until_upgraded()
    training.wait_until_adopted()
    assert torchrelay.leader() not in old
    training.signal(f"{training.name}-1", signal.SIGKILL)
    training.let_pass(STEP)
    (migration,) = training.wait_for_migration()
    training.wait_until_succeeded()
    assert differences(undisturbed, training.out, training.world_size) == []
    assert (migration["kind"], migration["rank"]) == ("unplanned", 1)


@pytest.mark.core
def test_a_rank_is_lost_during_an_upgrade(training: Training, torchrelay: Installation, undisturbed: Path) -> None:
    training.held = (STEP, LATER)
    training.start()
    training.wait_until_ready()
    training.wait_until_held(STEP)
    torchrelay.begin_upgrade()
    training.signal(f"{training.name}-1", signal.SIGKILL)
    training.let_pass(STEP)
    torchrelay.wait_until_upgraded()
    (migration, *_) = training.wait_for_migration()
    training.wait_until_held(LATER)
    training.let_pass(LATER)
    training.wait_until_succeeded()
    assert differences(undisturbed, training.out, training.world_size) == []
    assert (migration["kind"], migration["rank"]) == ("unplanned", 1)
