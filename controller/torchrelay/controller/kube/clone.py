"""A spare's pod, made from a worker's. Pure."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

from torchrelay.protocol import kube_names as kube
from torchrelay.protocol.errors import UserError
from torchrelay.protocol.kube_annotations import read
from torchrelay.protocol.names import ENV_SPARE

API_TOKEN_FOLDER = "/var/run/secrets/kubernetes.io/serviceaccount"
DROPPED_ENV = ("RANK", "NODE_RANK", "GROUP_RANK", "PET_NODE_RANK")
"""Of the worker that is copied: without them a copy that our code does not get into fails, and never trains as that rank."""
_KEPT_ANNOTATIONS = (*kube.USER_ANNOTATIONS, kube.INJECTED, kube.OWNER)
_NOT_IN_SPEC = ("nodeName", "hostname", "subdomain", "priority", "preemptionPolicy")


def spare_pod(
    worker: dict[str, Any], owner: dict[str, Any], terms: Sequence[dict[str, Any]] = (), priority_class: str = ""
) -> dict[str, Any]:
    """`worker`: a pod as the webhook left it and the API has it. `owner`: a TrainingJob, with which the spare goes.

    `terms`: as `decide.placement` gives them. Raises UserError where it has no
    container to be parked.
    """
    meta, spec = worker["metadata"], copy.deepcopy(worker["spec"])
    for name in _NOT_IN_SPEC:
        spec.pop(name, None)
    if priority_class:
        spec["priorityClassName"] = priority_class
    _drop_api_token(spec)
    _park(spec, meta.get("annotations") or {})
    _prefer(spec, terms)
    annotations = meta.get("annotations") or {}
    job = meta["labels"][kube.JOB]
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "generateName": f"{job[:40]}-spare-",
            "namespace": meta["namespace"],
            "labels": {kube.JOB: job, kube.ROLE: kube.SPARE},
            "annotations": {k: annotations[k] for k in _KEPT_ANNOTATIONS if k in annotations},
            "ownerReferences": [
                {
                    "apiVersion": kube.API_VERSION,
                    "kind": "TrainingJob",
                    "name": owner["metadata"]["name"],
                    "uid": owner["metadata"]["uid"],
                    "controller": True,
                }
            ],
        },
        "spec": spec,
    }


def training_container(spec: dict[str, Any], annotations: dict[str, str]) -> dict[str, Any]:
    """The one that the shim was put into. Raises UserError if there is none."""
    wanted = read(annotations).container
    for container in spec["containers"]:
        names = {e["name"] for e in container.get("env") or ()}
        if kube.ENV_ASK in names and container["name"] in (wanted or container["name"],):
            found: dict[str, Any] = container
            return found
    raise UserError("the pod has no training container that torchrelay was put into")


def _park(spec: dict[str, Any], annotations: dict[str, str]) -> None:
    container = training_container(spec, annotations)
    env = [e for e in container["env"] if e["name"] not in (*DROPPED_ENV, ENV_SPARE)]
    container["env"] = [*env, {"name": ENV_SPARE, "value": "1"}]
    for probe in ("livenessProbe", "readinessProbe", "startupProbe"):
        container.pop(probe, None)  # a parked process serves nothing that could be probed


def _drop_api_token(spec: dict[str, Any]) -> None:
    """The API server adds it again, for the new pod."""
    containers = [*spec["containers"], *(spec.get("initContainers") or [])]
    tokens = {m["name"] for c in containers for m in c.get("volumeMounts") or () if m["mountPath"] == API_TOKEN_FOLDER}
    spec["volumes"] = [v for v in spec.get("volumes") or [] if v["name"] not in tokens]
    for container in containers:
        if mounts := container.get("volumeMounts"):
            container["volumeMounts"] = [m for m in mounts if m["name"] not in tokens]


def _prefer(spec: dict[str, Any], terms: Sequence[dict[str, Any]]) -> None:
    affinity = spec.setdefault("affinity", {})
    for term in terms:
        if "never" in term:
            _require(affinity, term["never"])
            continue
        kind = "nodeAffinity" if "node" in term else "podAntiAffinity"
        preferred = affinity.setdefault(kind, {}).setdefault("preferredDuringSchedulingIgnoredDuringExecution", [])
        preferred.append(term.get("node") or term["apart"])
    if not affinity:
        del spec["affinity"]


def _require(affinity: dict[str, Any], expression: dict[str, Any]) -> None:
    """Terms are alternatives: the expression goes into each."""
    node = affinity.setdefault("nodeAffinity", {})
    required = node.setdefault("requiredDuringSchedulingIgnoredDuringExecution", {"nodeSelectorTerms": [{}]})
    for term in required["nodeSelectorTerms"]:
        term.setdefault("matchExpressions", []).append(expression)
