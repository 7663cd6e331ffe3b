"""A spare's pod, made from a worker's. Pure."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

from torchrelay.protocol.errors import UserError
from torchrelay.protocol.kube import kube_names as kube
from torchrelay.protocol.kube.annotations import read
from torchrelay.protocol.kube.object_names import beginning
from torchrelay.protocol.names import ENV_SPARE

API_TOKEN_FOLDER = "/var/run/secrets/kubernetes.io/serviceaccount"
DROPPED_ENV = ("RANK", "NODE_RANK", "GROUP_RANK", "PET_NODE_RANK")
"""Variables of the worker that the copy does not get. Without them a copy whose process runs without the shim fails, and never

trains as that rank.
"""
NOT_COPIED = (
    # Which member of its owner a pod is: the owner's Services and counts go by these, and a spare is no member.
    "training.kubeflow.org/",
    "trainer.kubeflow.org/",
    "jobset.sigs.k8s.io/",
    "leaderworkerset.sigs.k8s.io/",
    "batch.kubernetes.io/",
    "batch.volcano.sh/",
    "volcano.sh/job-",
    "volcano.sh/task-",
    "ray.io/",
    "statefulset.kubernetes.io/",
    "apps.kubernetes.io/",
    "job-name",
    "controller-uid",
    "controller-revision-hash",
    "pod-template-hash",
    "pod-template-generation",
    "group-name",
    "replica-index",
    "replica-type",
    # A group of pods that Kueue counts: one more than it was told of is deleted. The queue itself is copied.
    "kueue.x-k8s.io/pod-group-",
    "kueue.x-k8s.io/managed",
    "kueue.x-k8s.io/podset",
    "kueue.x-k8s.io/workload",
    "kueue.x-k8s.io/prebuilt-workload-name",
    "kueue.x-k8s.io/role-hash",
    # What one pod was given, or how it is: the new one gets its own.
    "kubectl.kubernetes.io/last-applied-configuration",
    "kubectl.kubernetes.io/restartedAt",
    "k8s.v1.cni.cncf.io/network-status",
    "k8s.v1.cni.cncf.io/networks-status",
    "cni.projectcalico.org/",
    "k8s.ovn.org/",
    "ovn.kubernetes.io/ip_address",
    "ovn.kubernetes.io/mac_address",
    "kubernetes.io/config.",
    "kubernetes.io/psp",
    "openshift.io/scc",
    "controller.kubernetes.io/pod-deletion-cost",
    "cluster-autoscaler.kubernetes.io/",
    # Ours, about the one pod.
    kube.NOTES,
    kube.NOT_INJECTED,
    kube.ORIGIN,
    kube.ROLE,
)
"""Labels and annotations of a rank's pod that its spare does not get, by what they begin with. All others are copied: networks,

queues, groups, meshes, cost centres, and any that are not known here.
"""
_OF_ONE_CLAIM = ("volumeName", "dataSource", "dataSourceRef", "selector")
_NOT_IN_SPEC = ("nodeName", "hostname", "subdomain", "priority", "preemptionPolicy")


def spare_pod(
    worker: dict[str, Any],
    owner: dict[str, Any],
    terms: Sequence[dict[str, Any]] = (),
    priority_class: str = "",
    claims: Mapping[str, dict[str, Any]] = MappingProxyType({}),
) -> dict[str, Any]:
    """Return the manifest of a spare's pod. Raises UserError where the worker's pod has no container to be parked.

    `worker`: a pod as the webhook left it and the API has it. `owner`: a TrainingJob, with which the spare goes.
    `terms`: as `decide.placement` gives them. `claims`: by name, the specs of the volume claims that are this worker's own
    (`own_claims`): the spare gets new ones like them, which go with it.
    """
    meta = worker["metadata"]
    spec = copy.deepcopy(worker["spec"])
    for name in _NOT_IN_SPEC:
        spec.pop(name, None)
    if priority_class:
        spec["priorityClassName"] = priority_class
    _drop_api_token(spec)
    _claim_anew(spec, claims)
    _park(spec, meta.get("annotations") or {})
    _prefer(spec, terms)
    annotations = meta.get("annotations") or {}
    job = meta["labels"][kube.JOB]
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "generateName": f"{beginning(job, 40)}-spare-",
            "namespace": meta["namespace"],
            "labels": {**_copied(meta["labels"]), kube.JOB: job, kube.ROLE: kube.SPARE},
            "annotations": _copied(annotations),
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


def own_claims(worker: dict[str, Any]) -> dict[str, str]:
    """Return volume -> claim, by name, for claims that belong to this one pod: a StatefulSet makes one for each of its pods."""
    meta = worker["metadata"]
    found = {}
    for volume in worker["spec"].get("volumes") or ():
        claim = (volume.get("persistentVolumeClaim") or {}).get("claimName", "")
        if claim and claim == f"{volume['name']}-{meta['name']}":
            found[str(volume["name"])] = str(claim)
    return found


def _copied(found: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in found.items() if not name.startswith(NOT_COPIED)}


def _claim_anew(spec: dict[str, Any], claims: Mapping[str, dict[str, Any]]) -> None:
    for place, volume in enumerate(spec.get("volumes") or ()):
        claim = (volume.get("persistentVolumeClaim") or {}).get("claimName", "")
        if claim in claims:
            like = {k: v for k, v in claims[claim].items() if k not in _OF_ONE_CLAIM}
            template = {"spec": {**like, "resources": {"requests": like.get("resources", {}).get("requests", {})}}}
            spec["volumes"][place] = {"name": volume["name"], "ephemeral": {"volumeClaimTemplate": template}}


def training_container(spec: dict[str, Any], annotations: dict[str, str]) -> dict[str, Any]:
    """Return the container that the shim was put into. Raises UserError if there is none."""
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
    """Drop the API token's volume: the API server adds it again, for the new pod."""
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
    """Add the expression to each required term, since terms are alternatives."""
    node = affinity.setdefault("nodeAffinity", {})
    required = node.setdefault("requiredDuringSchedulingIgnoredDuringExecution", {"nodeSelectorTerms": [{}]})
    for term in required["nodeSelectorTerms"]:
        term.setdefault("matchExpressions", []).append(expression)
