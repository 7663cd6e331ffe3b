"""Shards that one rank alone holds: its pod is lost, and all go back to the copies that are kept in other pods."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from e2e.test_torchrun import Torchrun
from support.kubectl import Kubectl
from support.training import differences
from support.training_pods import NODES, Training

SCRIPT, STEPS, STEP, EVERY = "sharded.py", 30, 20, 4
ALONE = {"SHARDS": "alone"}
"""Also with four ranks, of which two would hold the same else."""


def sharded(training: Training) -> Training:
    training.script, training.epochs = SCRIPT, STEPS
    return training


@pytest.fixture
def protected(training: Training) -> Training:
    training.asked = {"buddy-every": str(EVERY)}
    training.held = (STEP,)
    return sharded(training)


@pytest.fixture
def launched(kubectl: Kubectl, torchrelay: object, tmp_path: Path) -> Iterator[Torchrun]:
    job = Torchrun(kubectl, "sharded-torchrun", tmp_path)
    yield job
    job.delete()


@pytest.fixture(scope="module")
def undisturbed_shards(kubectl: Kubectl, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("undisturbed-shards")
    training = sharded(Training(kubectl, "undisturbed-shards", out, protected=False))
    training.start()
    training.wait_until_succeeded()
    training.delete()
    return out


def test_a_pod_with_the_only_shards_is_deleted_with_force(protected: Training, undisturbed_shards: Path) -> None:
    protected.start()
    protected.wait_until_ready()
    protected.wait_until_copied(1)
    protected.wait_until_held(STEP)
    protected.kubectl("delete", "pod", f"{protected.name}-1", "--force", "--grace-period=0")
    protected.let_pass(STEP)
    (migration,) = protected.wait_for_migration()
    protected.wait_until_succeeded()
    assert differences(undisturbed_shards, protected.out, protected.world_size) == []
    assert (migration["kind"], migration["rank"]) == ("rollback", 1), migration
    assert "-spare-" in migration["toPod"], migration
    assert migration["stepsRedone"] in (EVERY, 2 * EVERY), migration
    assert "rank 0 gives that of rank 1" in str(migration["decisions"]), migration
    assert protected.restarts(f"{protected.name}-0") == {"train": 0, "torchrelay-agent": 0}, (
        "it begins anew in its place"
    )


def test_the_only_shards_under_torchrun(launched: Torchrun, undisturbed_shards: Path) -> None:
    """Its torchrun sees nothing of a process that begins anew, and ends well with it."""
    sharded(launched).asked = {"buddy-every": str(EVERY)}
    launched.held = (STEP,)
    launched.start()
    launched.wait_until_ready()
    launched.wait_until_held(STEP)
    launched.wait_until_copied(1)
    lost, stays = launched.pod_of(1), launched.pod_of(0)
    launched.kubectl("delete", "pod", lost, "--force", "--grace-period=0")
    launched.let_pass(STEP)
    (migration,) = launched.wait_for_migration()
    launched.wait_until_succeeded()
    assert differences(undisturbed_shards, launched.out, launched.world_size) == []
    assert (migration["kind"], migration["stepsRedone"] in (EVERY, 2 * EVERY)) == ("rollback", True), migration
    assert launched.restarts(stays)["train"] == 0
    launched.wait_until_over()


def test_a_killed_process_with_the_only_shards(protected: Training, undisturbed_shards: Path) -> None:
    protected.start()
    protected.wait_until_ready()
    protected.wait_until_copied(0)
    protected.wait_until_held(STEP)
    protected.signal(f"{protected.name}-0", signal.SIGKILL)
    protected.let_pass(STEP)
    (migration,) = protected.wait_for_migration()
    protected.wait_until_succeeded()
    assert differences(undisturbed_shards, protected.out, protected.world_size) == []
    assert (migration["kind"], migration["rank"]) == ("rollback", 0), migration
    assert "rank 1 gives that of rank 0" in str(migration["decisions"]), migration


def test_the_buddy_is_lost_too(protected: Training) -> None:
    """Each rank's buddy is on the next node: with pod 1 goes what rank 0 has left."""
    protected.world_size, protected.nodes = 3, NODES
    protected.start()
    protected.wait_until_ready()
    protected.wait_until_held(STEP)
    pods = [f"{protected.name}-{rank}" for rank in (0, 1)]
    protected.kubectl("delete", "pod", *pods, "--force", "--grace-period=0")
    protected.let_pass(STEP)
    (migration,) = protected.wait_for_migration("abandoned")
    said = migration["conditions"][0]["message"]
    assert "there is no whole copy of the state of rank" in said or "nobody has copies" in said, migration
    assert not list(protected.out.glob("rank-*.json")), "no rank goes on with another state"


@pytest.fixture(scope="module")
def undisturbed_four(kubectl: Kubectl, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("undisturbed-four")
    training = sharded(Training(kubectl, "undisturbed-four", out, protected=False))
    training.world_size, training.environ = 4, ALONE
    training.start()
    training.wait_until_succeeded()
    training.delete()
    return out


@pytest.mark.parametrize("sync", [False, True], ids=["beside", "sync"])
def test_the_only_shards_of_two_processes(launched: Torchrun, undisturbed_four: Path, sync: bool) -> None:
    """Both ranks of a pod go to a spare's, from copies that both processes of the other pod have fetched; these begin anew in
    their place."""
    sharded(launched).asked = {"buddy-every": str(EVERY), **({"buddy-sync": "true"} if sync else {})}
    launched.name += "-sync" if sync else "-two"
    launched.world_size, launched.processes, launched.held, launched.environ = 4, 2, (STEP,), ALONE
    launched.start()
    launched.wait_until_ready()
    launched.wait_until_held(STEP)
    lost, stays = launched.pod_of(3), launched.pod_of(0)
    ranks = launched.ranks_of(lost)
    for rank in ranks:
        launched.wait_until_copied(rank)
    launched.kubectl("delete", "pod", lost, "--force", "--grace-period=0")
    launched.let_pass(STEP)
    (migration,) = launched.wait_for_migration()
    launched.wait_until_succeeded()
    assert differences(undisturbed_four, launched.out, launched.world_size) == []
    assert (migration["kind"], migration["fromPod"]) == ("rollback", lost), migration
    assert migration["stepsRedone"] in ((EVERY,) if sync else (EVERY, 2 * EVERY)), migration
    for rank in ranks:
        assert f"gives that of rank {rank}" in str(migration["decisions"]), migration
    assert launched.restarts(stays)["train"] == 0
    launched.wait_until_over()
