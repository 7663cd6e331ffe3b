"""Ranks are lost in pods: a spare pod takes over, and the job ends with the same weights, bit for bit."""

from __future__ import annotations

import signal
from pathlib import Path

from support.training import differences
from support.training_pods import Training

STEP = 20


def test_a_killed_worker(training: Training, undisturbed: Path) -> None:
    training.held = (STEP,)
    training.start()
    training.wait_until_ready()
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
    assert phases[-1] == "committed", migration
