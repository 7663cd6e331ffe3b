"""What is not to be done is not done, and said: by the annotation `policy`, and for a script that ends by itself."""

from __future__ import annotations

import signal
from pathlib import Path

from support.kubectl import wait_for
from support.training import differences
from support.training_pods import Training

STEP, LATER = 15, 30


def told(training: Training, reason: str) -> list[str]:
    """Messages of the job's events with that reason."""
    chosen = f"--field-selector=involvedObject.kind=TrainingJob,involvedObject.name={training.name},reason={reason}"
    return [e["message"] for e in training.kubectl.items("events", chosen)]


def test_observe_says_what_it_would_have_done(training: Training) -> None:
    training.asked = {"policy": "observe"}
    training.held, training.nodes = (STEP, LATER), ("node-1", "node-2")
    training.start()
    wait_for("a job that is observed", lambda: told(training, "Unprotected") or None, 60.0, training.describe)
    assert "observe" in told(training, "Unprotected")[0]
    held = [training.out / f"held-{STEP}-{rank}" for rank in range(2)]
    wait_for("ranks that train", lambda: all(f.exists() for f in held) or None, 60.0, training.describe)
    training.kubectl("cordon", "node-2")
    try:
        wait_for("a word about the cordon", lambda: told(training, "Observed") or None, 30.0, training.describe)
    finally:
        training.kubectl("uncordon", "node-2")
    (said,) = told(training, "Observed")
    assert said.startswith("would migrate rank 1:")
    training.signal(f"{training.name}-1", signal.SIGKILL)
    wait_for(
        "a word about the loss",
        lambda: [t for t in told(training, "Observed") if t.startswith("would replace rank 1:")] or None,
        30.0,
        training.describe,
    )
    training.let_pass(STEP)
    wait_for(
        "the end that it has without torchrelay", lambda: len(training.ended()) == 2 or None, 90.0, training.describe
    )
    assert {p["status"]["phase"] for p in training.pods().values()} == {"Failed"}
    assert training.migrations() == []
    assert set(training.pods()) == {f"{training.name}-0", f"{training.name}-1"}


def test_planned_only_moves_and_replaces_nothing(training: Training, undisturbed: Path) -> None:
    training.asked = {"policy": "planned-only"}
    training.held, training.nodes = (STEP, LATER), ("node-1", "node-2")
    training.start()
    training.wait_until_ready()
    training.wait_until_held(STEP)
    training.kubectl("cordon", "node-2")
    try:
        training.wait_for_phase("quiesce")
        training.let_pass(STEP)
        (migration,) = training.wait_for_migration()
    finally:
        training.kubectl("uncordon", "node-2")
    assert (migration["kind"], migration["rank"], migration["stepsRedone"]) == ("planned", 1, 0)
    training.wait_until_ready()
    training.wait_until_held(LATER)
    training.signal(f"{training.name}-0", signal.SIGKILL)
    wait_for("a job that failed", lambda: told(training, "JobFailed") or None, 60.0, training.describe)
    assert "planned-only" in told(training, "JobFailed")[0]
    assert len([m for m in training.migrations() if m.get("outcome") == "committed"]) == 1
    assert differences(undisturbed, training.out, training.world_size)  # nobody went on


def test_a_script_that_leaves_by_os_exit_is_not_replaced(training: Training) -> None:
    training.environ = {"LEAVE": f"1:{LATER}:7"}
    training.start()
    wait_for("a job that failed", lambda: told(training, "JobFailed") or None, 90.0, training.describe)
    assert told(training, "JobFailed")[0].startswith("exit code 7:")
    workers = {f"{training.name}-{rank}" for rank in range(training.world_size)}
    wait_for("the end of its pods", lambda: workers <= training.ended() or None, 60.0, training.describe)
    statuses = training.pods()[f"{training.name}-1"]["status"]["containerStatuses"]
    (train,) = [s for s in statuses if s["name"] == "train"]
    assert train["state"]["terminated"]["exitCode"] == 7
    assert training.migrations() == []
