"""What pods are made of, and what becomes of them when torchrelay is away."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.kube_install import Installation
from support.kubectl import wait_for
from support.training import differences
from support.training_pods import Training

STEP = 20


@pytest.mark.core
def test_a_job_starts_while_the_webhook_is_away(
    training: Training, torchrelay: Installation, undisturbed: Path
) -> None:
    torchrelay.scale(0, "torchrelay-webhook")
    try:
        training.start(injected=False)
        assert {len(p["spec"]["containers"]) for p in training.pods().values()} == {1}
        training.wait_until_succeeded()
    finally:
        torchrelay.restore("torchrelay-webhook")
    assert differences(undisturbed, training.out, training.world_size) == []


def test_a_job_runs_while_the_controller_is_away(
    training: Training, torchrelay: Installation, undisturbed: Path
) -> None:
    training.held = (STEP,)
    training.start()
    training.wait_until_ready()
    torchrelay.scale(0)
    try:
        training.let_pass(STEP)
        training.wait_until_succeeded()
        ended = {f"{training.name}-{rank}" for rank in range(training.world_size)}
        wait_for(
            "the end of the workers", lambda: True if ended <= training.ended() else None, 150.0, training.describe
        )
    finally:
        torchrelay.restore()
    assert differences(undisturbed, training.out, training.world_size) == []
