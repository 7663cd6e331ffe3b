"""Controllers that make pods again do not fight: a rank that moved stays where it is, and what they make is a spare."""

from __future__ import annotations

import copy
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.kubectl import Kubectl, wait_for
from support.training import differences
from support.training_pods import Training

STEP, MIDDLE, LATER = 15, 20, 30
"""Copies of journals that a pod has lost are made anew at boundaries: some are left after the middle."""


class Owned(Training):
    """Its pods are made by `kind`: a Job for each rank, or one StatefulSet for all."""

    def __init__(self, kubectl: Kubectl, name: str, out: Path) -> None:
        super().__init__(kubectl, name, out)
        self.kind, self.backoff = "Job", 6

    def manifests(self) -> list[dict[str, Any]]:
        if self.kind == "Job":
            return [self._job(rank) for rank in range(self.world_size)]
        return [self._stateful_set()]

    def _template(self, rank: int) -> dict[str, Any]:
        pod = copy.deepcopy(self.pod(rank))
        meta = {"labels": pod["metadata"]["labels"], "annotations": pod["metadata"]["annotations"]}
        return {"metadata": meta, "spec": pod["spec"]}

    def _job(self, rank: int) -> dict[str, Any]:
        return {
            "apiVersion": "batch/v1",
            "kind": "Job",
            "metadata": {"name": f"{self.name}-{rank}", "namespace": "default"},
            "spec": {"backoffLimit": self.backoff, "template": self._template(rank)},
        }

    def _stateful_set(self) -> dict[str, Any]:
        template = self._template(0)
        for name in ("hostname", "subdomain"):
            del template["spec"][name]
        container = template["spec"]["containers"][0]
        container["env"] = [e for e in container["env"] if e["name"] != "RANK"]
        # Its containers are started again whatever they end with; at the end of training this one stays.
        script = f"RANK=${{HOSTNAME##*-}} {' '.join(container['command'])} && exec sleep 600"
        container["command"] = ["sh", "-c", script]
        return {
            "apiVersion": "apps/v1",
            "kind": "StatefulSet",
            "metadata": {"name": self.name, "namespace": "default"},
            "spec": {
                "replicas": self.world_size,
                "serviceName": self.name,
                "podManagementPolicy": "Parallel",
                "selector": {"matchLabels": {"train": self.name}},
                "template": template,
            },
        }

    def pod_of(self, rank: int) -> str:
        return str(self.resource()["ranks"][rank]["pod"])

    def delete(self) -> None:
        self.kubectl("delete", self.kind.lower(), "--all", "--wait=false", "--cascade=background")
        super().delete()


@pytest.fixture
def owned(kubectl: Kubectl, torchrelay: object, tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Owned]:
    name = request.node.name.removeprefix("test_").replace("_", "-").replace("[", "-").strip("]")[:30].strip("-")
    job = Owned(kubectl, name.lower(), tmp_path)
    job.held = (STEP, MIDDLE, LATER)
    yield job
    job.delete()


def wait_until_complete(job: Owned) -> None:
    def complete() -> bool | None:
        jobs = [j for j in job.kubectl.items("jobs") if j["metadata"]["name"].startswith(job.name)]
        return True if all(j["status"].get("succeeded") == 1 for j in jobs) and len(jobs) == job.world_size else None

    wait_for("Jobs that are complete", complete, 90.0, job.describe)


@pytest.mark.parametrize("policy", ["Never", "OnFailure"])
def test_a_job_for_each_rank(owned: Owned, undisturbed: Path, policy: str) -> None:
    owned.restart_policy = policy
    owned.start()
    owned.wait_until_ready()
    owned.wait_until_held(STEP)
    first = owned.pod_of(1)
    owned.signal(first, signal.SIGKILL)
    owned.let_pass(STEP)
    (migration,) = owned.wait_for_migration()
    assert migration["fromPod"] == first
    owned.wait_until_ready()
    owned.let_pass(MIDDLE)
    owned.wait_until_held(LATER)
    owned.wait_until_copied(0)
    owned.delete_by_force(owned.pod_of(0))
    owned.let_pass(LATER)
    owned.wait_for_migration(count=2)
    owned.wait_until_succeeded()
    assert differences(undisturbed, owned.out, owned.world_size) == []
    wait_until_complete(owned)


def test_a_container_that_is_started_again_takes_its_own_rank_where_there_is_no_spare(
    owned: Owned, undisturbed: Path
) -> None:
    owned.restart_policy, owned.spares = "OnFailure", 0
    owned.start()
    owned.wait_until_ready()
    owned.wait_until_held(STEP)
    pod = owned.pod_of(1)
    owned.signal(pod, signal.SIGKILL)
    owned.let_pass(STEP)
    owned.let_pass(MIDDLE)
    owned.let_pass(LATER)
    (migration,) = owned.wait_for_migration()
    assert (migration["fromPod"], migration["toPod"]) == (pod, pod)
    owned.wait_until_succeeded()
    assert differences(undisturbed, owned.out, owned.world_size) == []
    wait_until_complete(owned)


def test_what_is_made_for_a_job_goes_with_its_workload(owned: Owned) -> None:
    owned.kind, owned.restart_policy = "StatefulSet", "Always"
    owned.start()
    owned.wait_until_ready()
    kinds = "trainingjobs,sparepools,poddisruptionbudgets"

    def there() -> list[str]:
        return [f"{o['kind']} {o['metadata']['name']}" for o in owned.kubectl.items(kinds)]

    assert len([name for name in there() if name.endswith(owned.name)]) == 3, there()
    owned.kubectl("delete", "statefulset", owned.name, "--wait=false")
    wait_for("nothing of the job", lambda: not [n for n in there() if n.endswith(owned.name)] or None, 90.0, there)
    wait_for("no spare", lambda: not [p for p in owned.pods() if p.startswith(owned.name)] or None, 90.0, owned.pods)


def test_a_stateful_set(owned: Owned, undisturbed: Path) -> None:
    owned.kind, owned.restart_policy = "StatefulSet", "Always"
    owned.start()
    owned.wait_until_ready()
    owned.wait_until_held(STEP)
    owned.signal(f"{owned.name}-1", signal.SIGKILL)
    owned.let_pass(STEP)
    (migration,) = owned.wait_for_migration()
    assert migration["rank"] == 1
    owned.wait_until_ready()
    owned.let_pass(MIDDLE)
    owned.wait_until_held(LATER)
    owned.wait_until_copied(0)
    owned.delete_by_force(f"{owned.name}-0")
    owned.let_pass(LATER)
    owned.wait_for_migration(count=2)
    owned.wait_until_succeeded()
    assert differences(undisturbed, owned.out, owned.world_size) == []
    assert owned.pod_of(0) != f"{owned.name}-0"
    assert f"{owned.name}-0" in owned.pods()
