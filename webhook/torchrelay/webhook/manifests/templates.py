"""Pod templates in the workloads that people write."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from torchrelay.protocol.kube.kube_names import INJECT

EACH = "*"
_TEMPLATE = ("spec", "template")
_REPLICATED_JOBS = ("replicatedJobs", EACH, "template", *_TEMPLATE)
_RAY = (("headGroupSpec", "template"), ("workerGroupSpecs", EACH, "template"))

Path = tuple[str, ...]
PATHS: dict[str, tuple[Path, ...]] = {
    "Pod": ((),),
    "Job": (_TEMPLATE,),
    "Deployment": (_TEMPLATE,),
    "ReplicaSet": (_TEMPLATE,),
    "StatefulSet": (_TEMPLATE,),
    "DaemonSet": (_TEMPLATE,),
    "CronJob": (("spec", "jobTemplate", *_TEMPLATE),),
    "PyTorchJob": (("spec", "pytorchReplicaSpecs", EACH, "template"),),
    "JobSet": (("spec", *_REPLICATED_JOBS),),
    "LeaderWorkerSet": tuple(("spec", "leaderWorkerTemplate", f"{who}Template") for who in ("leader", "worker")),
    "RayCluster": tuple(("spec", *path) for path in _RAY),
    "RayJob": tuple(("spec", "rayClusterSpec", *path) for path in _RAY),
    "TrainingRuntime": (("spec", "template", "spec", *_REPLICATED_JOBS),),
    "ClusterTrainingRuntime": (("spec", "template", "spec", *_REPLICATED_JOBS),),
}
NAMED_LATER = ("CronJob", "TrainingRuntime", "ClusterTrainingRuntime")
"""Several jobs come of one such document, each with a name of its own: the webhook alone can tell them apart."""
_MANAGER = INJECT
"""Whose patch of a TrainJob it is."""
_INITIALIZERS = ("dataset-initializer", "model-initializer")
"""Jobs of a TrainJob that do not train."""


def templates(document: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the pod templates of a document: the parts themselves, not copies. Empty for a kind that has none."""
    return [
        found
        for path in PATHS.get(document.get("kind", ""), ())
        for found in _at(document, path)
        if isinstance(found.get("spec"), dict)
    ]


def _at(node: Any, path: Path) -> Iterator[dict[str, Any]]:
    if not path:
        if isinstance(node, dict):
            yield node
        return
    if path[0] == EACH:
        children = node.values() if isinstance(node, dict) else node if isinstance(node, list) else ()
        for child in children:
            if not (isinstance(child, dict) and child.get("name") in _INITIALIZERS):
                yield from _at(child, path[1:])
    elif isinstance(node, dict) and path[0] in node:
        yield from _at(node[path[0]], path[1:])


def trainjob_pod_annotations(document: dict[str, Any]) -> dict[str, Any]:
    """Return the annotations that a TrainJob gives its pods, and add the field if it is missing.

    A TrainJob has no pod template of its own. Trainer 2.1 has podTemplateOverrides for it, 2.2 and later have runtimePatches.
    """
    spec = document.setdefault("spec", {})
    if (there := _annotated_before(spec)) is not None:
        return there
    if "podTemplateOverrides" in spec:
        override: dict[str, Any] = {"targetJobs": [{"name": "node"}], "metadata": {"annotations": {}}}
        spec["podTemplateOverrides"] = [*(spec["podTemplateOverrides"] or ()), override]
        return override["metadata"]["annotations"]  # type: ignore[no-any-return]  # of a document without a schema
    metadata: dict[str, Any] = {"annotations": {}}
    jobs = [{"name": "node", "template": {"spec": {"template": {"metadata": metadata}}}}]
    patch = {
        "manager": _MANAGER,
        "trainingRuntimeSpec": {"template": {"spec": {"replicatedJobs": jobs}}},
    }
    spec["runtimePatches"] = [*(spec.get("runtimePatches") or ()), patch]
    return metadata["annotations"]  # type: ignore[no-any-return]  # of a document without a schema


def _annotated_before(spec: dict[str, Any]) -> dict[str, Any] | None:
    """Return the annotations that an earlier injection or a person has written; None if there are none."""
    for override in spec.get("podTemplateOverrides") or ():
        annotations = (override.get("metadata") or {}).get("annotations") or {}
        if INJECT in annotations:
            return annotations
    for patch in spec.get("runtimePatches") or ():
        for template in _at(patch.get("trainingRuntimeSpec"), ("template", "spec", *_REPLICATED_JOBS)):
            annotations = (template.get("metadata") or {}).get("annotations") or {}
            if INJECT in annotations:
                return annotations
    return None
