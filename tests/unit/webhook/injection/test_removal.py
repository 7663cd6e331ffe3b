from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import yaml

from torchrelay.protocol.kube import kube_names as kube
from torchrelay.webhook.injection.inject import injected
from torchrelay.webhook.injection.removal import prepared_by, without_additions
from torchrelay.webhook.settings import WebhookSettings

PODS = sorted((Path(__file__).parent / "pods").glob("*.yaml"))
WISHES = {kube.BUDDY_EVERY: "20", kube.BUDDY_SYNC: "true", kube.CHECKPOINT_DIR: "/data/checkpoints"}


@pytest.mark.parametrize("sidecar", [kube.NATIVE, kube.CLASSIC])
@pytest.mark.parametrize("path", PODS, ids=lambda path: path.stem)
def test_a_pod_is_what_it_was_but_for_what_its_owner_may_have_written(path: Path, sidecar: str) -> None:
    pod: dict[str, Any] = yaml.safe_load(path.read_text())
    pod["metadata"]["annotations"] |= WISHES
    new, decision = injected(pod, WebhookSettings(sidecar=sidecar), "PEM")
    assert not decision.denied
    annotations = new["metadata"]["annotations"]
    assert bool(prepared_by(new)) == (kube.NOT_INJECTED not in annotations)
    if not prepared_by(new):
        return
    expected = copy.deepcopy(pod)
    expected["metadata"]["labels"] = new["metadata"]["labels"]
    ours = {kube.INJECTED, kube.NOTES}
    expected["metadata"]["annotations"] = {name: annotations[name] for name in annotations if name not in ours}
    if "shareProcessNamespace" in new["spec"]:
        expected["spec"]["shareProcessNamespace"] = new["spec"]["shareProcessNamespace"]
    for container in expected["spec"]["containers"]:  # variables with names of ours go, whoever wrote them
        if kept := [v for v in container.pop("env", []) if not v["name"].startswith("TORCHRELAY_")]:
            container["env"] = kept
    assert without_additions(new) == expected
