"""What happened to a job outlives its controllers and its resources, where the dashboard has a volume."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from support.kube_install import CONTROLLER, NAMESPACE, Installation
from support.kubectl import wait_for
from support.rendered_chart import render_deploy
from support.training_pods import Training, on_nodes

CLAIM = "history-of-a-test"
FOUND = {**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
WAIT_S = 60.0


def volume(folder: Path) -> list[dict[str, Any]]:
    of = {"accessModes": ["ReadWriteMany"], "storageClassName": ""}
    size = {"storage": "1Gi"}
    path = {"hostPath": {"path": on_nodes(folder)}, "capacity": size, "persistentVolumeReclaimPolicy": "Retain"}
    claim = {"resources": {"requests": size}, "volumeName": CLAIM}
    return [
        {"apiVersion": "v1", "kind": "PersistentVolume", "metadata": {"name": CLAIM}, "spec": {**of, **path}},
        {
            "apiVersion": "v1",
            "kind": "PersistentVolumeClaim",
            "metadata": {"name": CLAIM, "namespace": NAMESPACE},
            "spec": {**of, **claim},
        },
    ]


@pytest.fixture
def kept(torchrelay: Installation, tmp_path: Path) -> Iterator[Path]:
    """The folder that controllers keep jobs in, for the length of a test."""
    folder = tmp_path / "history"
    folder.mkdir()
    folder.chmod(0o777)
    torchrelay.kubectl("apply", "--filename=-", stdin=yaml.safe_dump_all(volume(folder)))
    for history in ({"claim": CLAIM}, {}):
        made = render_deploy.render({"dashboard": {"history": history}}, NAMESPACE)
        torchrelay.put(next(m for m in made if m["kind"] == "Deployment" and m["metadata"]["name"] == CONTROLLER))
        if history:
            yield folder
    torchrelay.kubectl("delete", "pvc", CLAIM, f"--namespace={NAMESPACE}")
    torchrelay.kubectl("delete", "pv", CLAIM)


def kept_jobs(name: str) -> list[dict[str, Any]]:
    command = ["kubectl", "torchrelay", "history", "--kept", name, "--json"]
    done = subprocess.run(command, env=FOUND, capture_output=True, text=True, timeout=60, check=False)
    return [json.loads(line) for line in done.stdout.splitlines()]


def test_a_job_is_told_when_its_controllers_and_its_resources_are_gone(
    training: Training, torchrelay: Installation, kept: Path
) -> None:
    training.start()
    training.wait_until_succeeded()
    wait_for("the end in the folder", lambda: _has_ended(kept) or None, WAIT_S, torchrelay.logs)
    training.kubectl("delete", "trainingjob", training.name)
    training.delete()
    torchrelay.kill_controller()
    torchrelay.restore()
    (card,) = wait_for("what was kept", lambda: kept_jobs(training.name) or None, WAIT_S, torchrelay.logs)
    assert (card["job"], card["over"], card["headline"]) == (f"default/{training.name}", True, "Finished")


def _has_ended(kept: Path) -> bool:
    return any("job_finished" in file.read_text() for file in kept.glob("*/events.jsonl"))
