"""What was added to a pod, taken out again: a manifest that an older version has prepared is prepared anew."""

from __future__ import annotations

import copy
from typing import Any

from torchrelay.protocol import names
from torchrelay.protocol.kube import kube_names as kube
from torchrelay.webhook.injection.target import Container, Pod
from torchrelay.webhook.injection.training_env import PYTHONPATH, Variable

_OURS = "TORCHRELAY_"
"""All variables that any version has added begin so, but for PYTHONPATH and the hash seed."""
_WRITTEN_BY_US = (kube.INJECTED, kube.NOTES, kube.NOT_INJECTED)


def prepared_by(pod: Pod) -> str:
    """Return the version of torchrelay that prepared the pod; empty if none did."""
    return str(((pod.get("metadata") or {}).get("annotations") or {}).get(kube.INJECTED) or "")


def without_additions(pod: Pod) -> Pod:
    """Return the pod without torchrelay's containers, volumes, variables and notes.

    What its owner may have written as well stays: the job's label, its owner, `shareProcessNamespace`. Variables whose
    names begin like torchrelay's are removed, even if the owner wrote them.
    """
    new = copy.deepcopy(pod)
    spec = new["spec"]
    kept: list[Container] = []
    ours: list[Container] = []
    for container in [*(spec.get("initContainers") or ()), *spec["containers"]]:
        (ours if container["name"] in (kube.INIT_CONTAINER, kube.AGENT_CONTAINER) else kept).append(container)
    still_mounted = {m["name"] for c in kept for m in c.get("volumeMounts") or ()} - {*kube.OWN_VOLUMES}
    gone = {m["name"] for c in ours for m in c.get("volumeMounts") or ()} - still_mounted | {*kube.OWN_VOLUMES}
    for part in ("initContainers", "containers", "volumes"):
        _keep(spec, part, [e for e in spec.get(part) or () if e not in ours and e["name"] not in gone])
    for container in [*(spec.get("initContainers") or ()), *spec["containers"]]:
        _restore(container)
    for name in _WRITTEN_BY_US:
        new["metadata"]["annotations"].pop(name, None)
    return new


def _restore(container: Container) -> None:
    mounts = [m for m in container.get("volumeMounts") or () if m["name"] not in kube.OWN_VOLUMES]
    _keep(container, "volumeMounts", mounts)
    _keep(container, "env", _restored(container.get("env") or []))


def _restored(env: list[Variable]) -> list[Variable]:
    was = {e["name"]: e for e in env}
    has_seed = names.ENV_HASH_SEED_WAS in was
    path = was.get(names.ENV_PYTHONPATH_WAS)
    restored = []
    for variable in env:
        name = variable["name"]
        if name == PYTHONPATH and kube.SITE_FOLDER in (variable.get("value") or "").split(":"):
            if path is not None:
                restored.append({**path, "name": PYTHONPATH})
        elif not name.startswith(_OURS) and not (name == names.HASH_SEED_VARIABLE and has_seed):
            restored.append(variable)
    return restored


def _keep(of: dict[str, Any], part: str, elements: list[Any]) -> None:
    """Set the part to the elements that are left. Drop an empty list, unless the pod had an empty list before."""
    if elements or of.get(part) == []:
        of[part] = elements
    else:
        of.pop(part, None)
