"""Each rung of the ladder where a container starts again in its pod, and all rungs in one job."""

from __future__ import annotations

import json
import signal
from pathlib import Path
from typing import Any

import pytest
from support.kubectl import wait_for
from support.training import differences
from support.training_pods import Training

STEP, LATER, LAST = 15, 22, 30
RUNGS = ["next-spare", "respawn", "jit-checkpoint", "checkpoint"]


def lose(training: Training, step: int, *ranks: int) -> None:
    """Kills the processes of the ranks while all wait before the step, which the others then begin."""
    training.wait_until_held(step)
    pods = [training.resource()["ranks"][rank]["pod"] for rank in ranks]
    for pod in pods:
        training.signal(pod, signal.SIGKILL)
    training.let_pass(step)


def wait_for_losses(training: Training, rungs: list[str]) -> list[dict[str, Any]]:
    """The losses that the job's resource has, by the rungs that were taken."""

    def told() -> list[dict[str, Any]] | None:
        losses: list[dict[str, Any]] = training.resource().get("losses", [])
        return losses if [loss.get("rung", "") for loss in losses] == rungs else None

    return wait_for(f"losses with the rungs {rungs}", told, 120.0, training.describe)


def wait_for_tried(training: Training) -> dict[str, tuple[str, str]]:
    """Of the latest migration for which more than a process was tried, what came of each rung: its loss is told before it."""

    def tried() -> dict[str, tuple[str, str]] | None:
        found = [{r["rung"]: (r["outcome"], r["reason"]) for r in m.get("rungs", ())} for m in training.migrations()]
        return next((rungs for rungs in reversed(found) if "jit-checkpoint" in rungs), None)

    return wait_for("a migration with rungs", tried, 30.0, training.describe)


def wait_for_state(training: Training, rank: int, state: str) -> None:
    def there() -> bool | None:
        ranks = training.resource().get("ranks", [])
        return True if len(ranks) > rank and ranks[rank]["state"] == state else None

    wait_for(f"rank {rank} that is {state}", there, 30.0, training.describe)


def partly(training: Training) -> dict[str, Any] | None:
    """The job's status once it is partly protected: ranks are armed one by one, and train meanwhile."""
    status = training.resource()
    return status if status.get("protection") == "partly" else None


def told(training: Training, reason: str) -> list[str]:
    """The events of that reason about the job."""
    found = training.kubectl.items("events", f"--field-selector=involvedObject.name={training.name},reason={reason}")
    return [event["message"] for event in found]


@pytest.mark.core
def test_a_process_goes_on_in_its_own_pod_where_there_is_no_spare(training: Training, undisturbed: Path) -> None:
    training.held, training.spares, training.restart_policy = (STEP,), 0, "OnFailure"
    training.start()
    training.wait_until_ready()
    status = wait_for("partial protection", lambda: partly(training), 60.0, training.describe)
    assert "started again in its place" in status["protectionReason"], status
    lose(training, STEP, 1)
    (migration,) = training.wait_for_migration()
    pod = f"{training.name}-1"
    assert (migration["fromPod"], migration["toPod"]) == (pod, pod)
    assert [(r["rung"], r["outcome"]) for r in migration["rungs"]] == [("next-spare", "refused"), ("respawn", "taken")]
    assert "no spare is left" in migration["rungs"][0]["reason"]
    (loss,) = wait_for_losses(training, ["respawn"])
    assert (loss["rank"], loss["step"], loss["stepsRedone"]) == (1, STEP - 1, 1)
    assert loss["seconds"] > 0
    assert any("respawn: rank 1 went on in the same pod" in text for text in told(training, "RungTaken"))
    training.wait_until_succeeded()
    assert differences(undisturbed, training.out, training.world_size) == []
    assert set(training.pods()) == {f"{training.name}-{rank}" for rank in range(2)}


def test_what_comes_back_is_the_next_spare_and_no_further_pod_is_made(training: Training, undisturbed: Path) -> None:
    training.held, training.restart_policy = (STEP, LATER, LAST), "OnFailure"
    training.start()
    training.wait_until_ready()
    pods = set(training.pods())
    assert len(pods) == 3
    for count, step in enumerate((STEP, LATER), 1):
        lose(training, step, 1)
        wait_for_losses(training, ["next-spare"] * count)
        training.wait_until_ready()
        assert set(training.pods()) == pods
    training.let_pass(LAST)
    training.wait_until_succeeded()
    assert differences(undisturbed, training.out, training.world_size) == []
    assert {m["toPod"] for m in training.migrations()} == {*pods} - {f"{training.name}-0"}


def test_a_loss_that_comes_at_the_same_step_a_third_time_ends_the_job_with_its_story(training: Training) -> None:
    training.held, training.spares, training.restart_policy = (STEP,), 0, "OnFailure"
    training.asked = {"checkpoint-dir": f"{training.out}/checkpoints"}
    training.start()
    training.wait_until_ready()
    for _ in range(2):
        training.wait_until_held_here(STEP)
        for rank in range(training.world_size):
            (training.out / f"held-{STEP}-{rank}").unlink()
        training.signal(f"{training.name}-1", signal.SIGKILL)
        training.let_pass(STEP)
        wait_for_state(training, 0, "standing")
        (training.out / str(STEP)).unlink()  # so that all come to the same step once more
    training.wait_until_held_here(STEP)
    training.signal(f"{training.name}-1", signal.SIGKILL)
    training.let_pass(STEP)
    wait_for_losses(training, ["respawn", "respawn", ""])
    story = f"rank 1 was lost at step {STEP - 1} 3 times: the script or its data would meet the same end again"
    refused = wait_for_tried(training)
    assert [refused[rung][0] for rung in RUNGS] == ["refused"] * 4, refused
    assert all(story in refused[rung][1] for rung in RUNGS[2:]), refused
    wait_for("a job that has failed", lambda: training.resource().get("phase") == "Failed" or None, 60.0)


def test_where_the_limit_is_used_up_survivors_save_and_the_job_begins_again(
    training: Training, undisturbed: Path
) -> None:
    training.held, training.spares, training.restart_policy = (STEP, LATER), 0, "OnFailure"
    training.asked = {"checkpoint-dir": f"{training.out}/checkpoints", "respawn-limit": "1"}
    training.start()
    training.wait_until_ready()
    lose(training, STEP, 1)
    wait_for_losses(training, ["respawn"])
    lose(training, LATER, 1)
    losses = wait_for_losses(training, ["respawn", "jit-checkpoint"])
    tried = wait_for_tried(training)
    assert "1 time within the hour (annotation respawn-limit 1)" in tried["respawn"][1], tried
    training.wait_until_succeeded()
    assert differences(undisturbed, training.out, training.world_size) == []
    losses = training.resource()["losses"]
    assert losses[-1]["stepsRedone"] == 1, losses
    assert losses[-1]["seconds"] > 0, losses
    assert set(training.pods()) == {f"{training.name}-{rank}" for rank in range(2)}


def test_all_rungs_in_one_job(training: Training, undisturbed: Path) -> None:
    steps = (STEP, STEP + 4, LATER, LATER + 4, LAST)
    training.held, training.spares, training.restart_policy = steps, 0, "OnFailure"
    training.asked = {"checkpoint-dir": f"{training.out}/checkpoints", "spare-wait": "60"}
    training.start()
    training.wait_until_ready()
    lose(training, steps[0], 1)
    wait_for_losses(training, ["respawn"])
    scale(training, 1)
    training.wait_until_ready(spares=1)
    lose(training, steps[1], 1)
    wait_for_losses(training, ["respawn", "next-spare"])
    # Neither a spare nor its own place: both pods in which rank 1 was are deleted.
    scale(training, 0)
    training.wait_until_held(steps[2])
    remove(training, f"{training.name}-1")
    wait_for("the pod's end", lambda: f"{training.name}-1" not in training.pods() or None, 30.0)
    training.let_pass(steps[2])  # its copies of journals are made elsewhere at the next heads
    training.wait_until_held(steps[3])
    training.wait_until_copied(1)
    before = len(training.migrations())
    remove(training, training.resource()["ranks"][1]["pod"])
    # Its process may live on for a while: until its loss is noticed, both ranks would do one more step.
    wait_for("a migration for it", lambda: training.migrations()[before:] or None, 30.0, training.describe)
    training.let_pass(steps[3])
    wait_for_losses(training, ["respawn", "next-spare", "jit-checkpoint"])
    training.wait_until_ready(spares=0)
    lose(training, steps[4], 0, 1)
    taken = wait_for_losses(training, ["respawn", "next-spare", "jit-checkpoint", "checkpoint"])
    training.wait_until_succeeded()
    assert differences(undisturbed, training.out, training.world_size) == []
    status = training.resource()
    assert status["rungs"] == {"respawn": 1, "next-spare": 1, "jit-checkpoint": 1, "checkpoint": 1}, status
    assert status["restartSteps"] == [steps[3] - 1] * 2, status
    assert status["losses"][-1]["stepsRedone"] == steps[4] - steps[3] + 1, taken
    assert len(told(training, "Restarted")) == 2


def remove(training: Training, pod: str) -> None:
    training.kubectl("delete", "pod", pod, "--force", "--grace-period=0", "--wait=false")


def scale(training: Training, spares: int) -> None:
    change = json.dumps({"spec": {"spares": spares}})
    training.kubectl("patch", "sparepool", training.name, "--type=merge", f"--patch={change}")
