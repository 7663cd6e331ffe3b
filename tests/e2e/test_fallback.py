"""No spare takes over: what is left then, rung by rung, and that each is told with its reason."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.kube_install import Installation
from support.kubectl import Kubectl, wait_for
from support.training import differences
from support.training_pods import Training

STEP, LATER = 20, 30
SAVED, NEWER = "step-10.pt", "step-20.pt"
QUOTA = {
    "apiVersion": "v1",
    "kind": "ResourceQuota",
    "metadata": {"name": "full", "namespace": "default"},
    "spec": {"hard": {"pods": "0"}},
}


@pytest.fixture
def _room_again(kubectl: Kubectl) -> Iterator[None]:
    yield
    kubectl("delete", "resourcequota", "full", "--ignore-not-found")


def rungs(migration: dict[str, Any]) -> dict[str, tuple[str, str]]:
    return {r["rung"]: (r["outcome"], r["reason"]) for r in migration.get("rungs", ())}


def lose(training: Training, pod: str, step: int) -> None:
    """Kills its process while all wait before the step, which the others then begin."""
    training.wait_until_held(step)
    training.signal(pod, signal.SIGKILL)
    training.let_pass(step)


def wait_for_rungs(training: Training, count: int = 1) -> list[dict[str, Any]]:
    """The migrations for which something below a spare was tried."""

    def tried() -> list[dict[str, Any]] | None:
        found = [m for m in training.migrations() if "jit-checkpoint" in rungs(m)]
        return found if len(found) >= count else None

    return wait_for(f"{count} migrations with rungs", tried, 90.0, training.describe)


def saved(training: Training) -> list[str]:
    """The whole just-in-time checkpoints on disk."""
    return [str(path.parent) for path in training.out.glob("checkpoints/torchrelay-jit-*/manifest.json")]


def wait_for_job(training: Training, phase: str, within_s: float = 90.0) -> dict[str, Any]:
    def there() -> dict[str, Any] | None:
        status = training.resource()
        return status if status.get("phase") == phase else None

    return wait_for(f"a job that is {phase}", there, within_s, training.describe)


@pytest.mark.core
@pytest.mark.usefixtures("_room_again")
def test_spares_are_used_up_and_the_cluster_is_full(
    training: Training, undisturbed: Path, kubectl: Kubectl, torchrelay: Installation
) -> None:
    training.held = (STEP, LATER)
    training.asked = {"checkpoint-dir": f"{training.out}/checkpoints", "spare-wait": "5"}
    training.start()
    training.wait_until_ready()
    kubectl.create(QUOTA)
    lose(training, f"{training.name}-1", STEP)
    (first,) = training.wait_for_migration()
    assert first["rank"] == 1
    lose(training, f"{training.name}-0", LATER)
    (fallen,) = wait_for_rungs(training)
    assert fallen["rank"] == 0
    outcome, reason = rungs(fallen)["next-spare"]
    assert (outcome, "within 5 s" in reason) == ("refused", True), fallen
    outcome, reason = rungs(fallen)["jit-checkpoint"]
    assert (outcome, f"step {LATER - 1}" in reason) == ("taken", True), fallen
    status = wait_for_job(training, "Restarting")
    assert status["restartSteps"] == [LATER - 1]
    assert "0 of 2 processes" in status["protectionReason"]
    torchrelay.kill_controller()  # the next one knows of it by the resources alone
    kubectl("delete", "resourcequota", "full")
    training.wait_until_succeeded()
    assert differences(undisturbed, training.out, training.world_size) == []
    wait_for("the removal of what was saved", lambda: None if saved(training) else True, 30.0, training.describe)
    (told,) = wait_for_rungs(training)
    assert told["outcome"] == "checkpoint"
    assert [c["status"] for c in told["conditions"] if c["type"] == "Restarted"] == ["True"], told


def test_a_job_does_not_begin_again_at_the_same_step_for_ever(training: Training) -> None:
    training.held, training.spares = (STEP,), 0
    training.asked = {"checkpoint-dir": f"{training.out}/checkpoints"}
    training.start()
    training.wait_until_ready()
    for restarts in range(3):
        ranks = wait_for_job(training, "Running")["ranks"]
        lose(training, ranks[1]["pod"], STEP)
        fallen = wait_for_rungs(training, restarts + 1)[-1]
        (training.out / str(STEP)).unlink()
        # Just after it has begun again nobody knows yet who has equal tensors: what was saved before serves once more.
        taken = [rung for rung, (outcome, _) in rungs(fallen).items() if outcome == "taken"]
        assert taken == [["jit-checkpoint"], ["checkpoint"], []][restarts], fallen
    assert f"was lost at step {STEP - 1} 3 times" in rungs(fallen)["checkpoint"][1], fallen
    assert wait_for_job(training, "Failed")["restartSteps"] == [STEP - 1, STEP - 1]
    assert len(saved(training)) == 1  # a job that has failed may be looked into


@pytest.mark.core
def test_the_newest_checkpoint_is_cut_off_and_the_one_before_is_taken(training: Training, kubectl: Kubectl) -> None:
    reference = Training(kubectl, "saving", training.out / "reference", protected=False)
    reference.out.mkdir()
    for job in (reference, training):
        job.script = "saving.py"
    reference.start()
    reference.wait_until_succeeded()
    reference.delete()
    folder = training.out / "checkpoints"
    training.held, training.spares, training.restart_policy = (STEP + 5,), 0, "OnFailure"
    training.asked = {"checkpoint-dir": str(folder), "fallback": "checkpoint"}
    training.start()
    training.wait_until_ready()
    training.wait_until_held(STEP + 5)
    newest = folder / NEWER
    newest.write_bytes(newest.read_bytes()[:-100])
    lose(training, f"{training.name}-1", STEP + 5)
    (fallen,) = wait_for_rungs(training)
    for rung in ("next-spare", "jit-checkpoint"):
        assert rungs(fallen)[rung] == ("refused", "is not among what the job allows")
    outcome, reason = rungs(fallen)["checkpoint"]
    assert (outcome, f"{NEWER} is not whole" in reason, f"{SAVED} is the newest whole" in reason) == (
        "taken",
        True,
        True,
    )
    training.wait_until_succeeded()
    assert differences(reference.out, training.out, training.world_size) == []
    assert [(training.out / f"began-{rank}").read_text() for rank in range(2)] == ["10", "10"]
    assert (folder / f"{NEWER}.torchrelay-aside").exists()
    assert set(training.pods()) == {f"{training.name}-0", f"{training.name}-1"}


def test_where_nothing_is_left_everything_is_said(training: Training) -> None:
    training.held, training.spares = (STEP,), 0
    training.start()
    training.wait_until_ready()
    lose(training, f"{training.name}-1", STEP)
    (fallen,) = wait_for_rungs(training)
    told = rungs(fallen)
    assert {rung: outcome for rung, (outcome, _) in told.items()} == dict.fromkeys(
        ("next-spare", "respawn", "jit-checkpoint", "checkpoint"), "refused"
    )
    assert "no spare is left" in told["next-spare"][1]
    assert "restartPolicy Never" in told["respawn"][1]
    assert "names no folder" in told["jit-checkpoint"][1]
    wait_for_job(training, "Failed")
