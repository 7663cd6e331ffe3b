"""The agent beside a training process is killed, and the kubelet starts it again."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest
from support.kubectl import wait_for
from support.training import differences
from support.training_pods import Training

STEP, LATER = 15, 30


@pytest.mark.core
def test_a_rank_whose_agent_was_killed_is_protected_again(training: Training, undisturbed: Path) -> None:
    training.held, training.restart_policy = (STEP, LATER), "OnFailure"
    training.start()
    training.wait_until_ready()
    training.wait_until_held(STEP)
    pod = f"{training.name}-1"
    training.kill_agent(pod)

    def again() -> bool | None:
        log = training.kubectl("logs", pod, "--container=torchrelay-agent")
        return True if training.restarts(pod) == {"train": 0, "torchrelay-agent": 1} and "is there" in log else None

    wait_for("the agent, started again and with a controller", again, 60.0, training.describe)
    training.let_pass(STEP)
    training.wait_until_held(LATER)
    assert training.migrations() == []
    training.signal(pod, signal.SIGKILL)
    training.let_pass(LATER)
    (migration,) = training.wait_for_migration()
    training.wait_until_succeeded()
    assert differences(undisturbed, training.out, training.world_size) == []
    assert (migration["kind"], migration["rank"], migration["stepsRedone"]) == ("unplanned", 1, 1)
