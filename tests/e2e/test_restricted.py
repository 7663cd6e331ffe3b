"""Pods as the *restricted* level of pod security has them: no root, no capabilities, nothing on the host that is not mounted."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.kubectl import Kubectl
from support.training import differences
from support.training_pods import Training

USER, STEP, EVERY, STEPS = 1000, 20, 4, 30


class Restricted(Training):
    def pod(self, rank: int) -> dict[str, Any]:
        pod = super().pod(rank)
        ids = {"runAsUser": USER, "runAsGroup": USER, "fsGroup": USER}
        pod["spec"]["securityContext"] = {"runAsNonRoot": True, **ids, "seccompProfile": {"type": "RuntimeDefault"}}
        (container,) = pod["spec"]["containers"]
        container["securityContext"] = {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}
        return pod

    def users(self, pod: str) -> set[str]:
        """Of all that runs in its containers."""
        command = ("sh", "-c", "cat /proc/[0-9]*/status 2>/dev/null | grep -E '^(Uid|CapEff|NoNewPrivs):' | sort -u")
        found = self.kubectl("exec", pod, "--container=train", "--", *command).splitlines()
        return {" ".join(line.split()) for line in found}


class ImagesUser(Restricted):
    """Its image has a user, the pod names none, and nothing may be written but what is mounted."""

    def pod(self, rank: int) -> dict[str, Any]:
        pod = super().pod(rank)
        del pod["spec"]["securityContext"]
        (container,) = pod["spec"]["containers"]
        container["image"] = "localhost/busybox-1000:1"
        container["securityContext"]["readOnlyRootFilesystem"] = True
        container["volumeMounts"].append({"name": "tmp", "mountPath": "/tmp"})  # PyTorch cannot be imported without one
        pod["spec"]["volumes"].append({"name": "tmp", "emptyDir": {}})
        return pod


@pytest.fixture
def restricted(kubectl: Kubectl, torchrelay: object, tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Any]:
    tmp_path.chmod(0o777)  # another user writes there
    job = Restricted(kubectl, request.node.name.removeprefix("test_").replace("_", "-")[:30].strip("-"), tmp_path)
    job.held = (STEP,)
    yield job
    job.delete()


@pytest.fixture
def images_user(kubectl: Kubectl, torchrelay: object, tmp_path: Path) -> Iterator[ImagesUser]:
    tmp_path.chmod(0o777)  # another user writes there
    job = ImagesUser(kubectl, "images-user", tmp_path)
    job.held = (STEP,)
    yield job
    job.delete()


def test_a_pod_whose_image_has_a_user_of_its_own_is_replaced(images_user: ImagesUser, undisturbed: Path) -> None:
    """The agent is root, which nobody has forbidden, and training is not."""
    images_user.start()
    images_user.wait_until_ready()
    images_user.wait_until_held(STEP)
    pod = f"{images_user.name}-1"
    assert f"Uid: {USER} {USER} {USER} {USER}" in images_user.users(pod), images_user.users(pod)
    assert images_user.resource()["protection"] == "protected", images_user.describe()
    images_user.wait_until_copied(1)
    images_user.delete_by_force(pod)
    images_user.let_pass(STEP)
    (migration,) = images_user.wait_for_migration()
    images_user.wait_until_succeeded()
    assert differences(undisturbed, images_user.out, images_user.world_size) == []
    assert (migration["kind"], migration["fromPod"]) == ("unplanned", pod), migration


def test_a_stopped_process_is_replaced(restricted: Restricted, undisturbed: Path) -> None:
    """The agent, of the same user, may see the process and end it."""
    restricted.start()
    restricted.wait_until_ready()
    restricted.wait_until_held(STEP)
    pod = f"{restricted.name}-1"
    ours = {line for line in restricted.users(pod) if str(USER) in line or "0000000000000000" in line}
    assert {f"Uid: {USER} {USER} {USER} {USER}", "CapEff: 0000000000000000"} <= ours, restricted.users(pod)
    restricted.signal(pod, signal.SIGSTOP)
    restricted.let_pass(STEP)
    (migration,) = restricted.wait_for_migration()
    restricted.wait_until_succeeded()
    assert differences(undisturbed, restricted.out, restricted.world_size) == []
    assert (migration["kind"], migration["fromPod"]) == ("unplanned", pod), migration
    assert "has been stopped" in str(migration), migration


def test_copies_are_gone_back_to(restricted: Restricted, kubectl: Kubectl, tmp_path_factory: Any) -> None:
    """Copies and journals are their user's alone, and its agent's."""
    out = tmp_path_factory.mktemp("undisturbed-shards")
    before = Training(kubectl, "undisturbed-shards", out, protected=False)
    for job in (before, restricted):
        job.script, job.epochs = "sharded.py", STEPS
    before.start()
    before.wait_until_succeeded()
    before.delete()
    restricted.asked = {"buddy-every": str(EVERY)}
    restricted.start()
    restricted.wait_until_ready()
    restricted.wait_until_held(STEP)
    restricted.wait_until_copied(1)
    restricted.kubectl("delete", "pod", f"{restricted.name}-1", "--force", "--grace-period=0")
    restricted.let_pass(STEP)
    (migration,) = restricted.wait_for_migration()
    restricted.wait_until_succeeded()
    assert differences(out, restricted.out, restricted.world_size) == []
    assert (migration["kind"], migration["rank"]) == ("rollback", 1), migration
