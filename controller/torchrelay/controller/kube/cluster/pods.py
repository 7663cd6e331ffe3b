"""Reads pods. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

from torchrelay.controller.kube.client.packed import pack, unpack
from torchrelay.controller.kube.decide.belongs import Workload
from torchrelay.controller.kube.decide.late import PodOwner
from torchrelay.protocol.kube import kube_names as kube

_OVER = ("Succeeded", "Failed")
_OURS = f"{kube.GROUP}/"
_JOBSET_API = "jobset.x-k8s.io/v1alpha2"
_JOBSET_NAME = "jobset.sigs.k8s.io/jobset-name"
_JOBSET_UID = "jobset.sigs.k8s.io/jobset-uid"
_DEFAULT_CONTAINER = "kubectl.kubernetes.io/default-container"


class JobKey(NamedTuple):
    """One job: pods of one namespace with the same label."""

    namespace: str
    name: str

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}"


class PodCondition(NamedTuple):
    type: str
    status: str
    reason: str
    message: str


@dataclass(frozen=True)
class Pod:
    """One pod. `node` is empty until it is scheduled. `annotations`: those that are read here, not all.

    `containers`: those that have a status, with whether each has ended. `packed`: the whole manifest.
    """

    key: JobKey
    name: str
    uid: str
    is_spare: bool
    node: str
    phase: str
    leaves: bool
    created: str
    restarts: bool
    owner: PodOwner
    workload: Workload
    annotations: dict[str, str]
    containers: tuple[tuple[str, bool], ...]
    conditions: tuple[PodCondition, ...]
    packed: bytes

    @property
    def manifest(self) -> dict[str, Any]:
        """The manifest, as a new copy each time, which costs something."""
        return unpack(self.packed)

    @cached_property
    def agent(self) -> str:
        """The name under which the pod's agent speaks."""
        return f"{self.name}:{self.uid[:8]}"

    @property
    def is_over(self) -> bool:
        return self.phase in _OVER

    @property
    def may_serve(self) -> bool:
        """Whether a training process lives in the pod, or will: the kubelet may start one again."""
        if self.is_over or self.leaves:
            return False
        if self.starts_again:
            return True
        trainers = [(name, ended) for name, ended in self.containers if name != kube.AGENT_CONTAINER]
        wanted = self.annotations.get(kube.CONTAINER) or self.annotations.get(_DEFAULT_CONTAINER, "")
        named = [(name, ended) for name, ended in trainers if name == wanted] or trainers
        return not named or not all(ended for _, ended in named)

    @property
    def starts_again(self) -> bool:
        """Whether the kubelet starts a process of the pod again that was killed."""
        return self.restarts and not self.is_over and not self.leaves

    @property
    def unscheduled(self) -> str:
        """Why the scheduler finds no node for the pod, or empty."""
        found = (c for c in self.conditions if c.type == "PodScheduled" and c.status == "False")
        return next((f"{self.name}: {c.message or c.reason or 'no node'}" for c in found), "")

    @property
    def has_controller(self) -> bool:
        return bool(self.owner.kind)

    @property
    def is_injected(self) -> bool:
        return kube.INJECTED in self.annotations


def job_of(manifest: dict[str, Any]) -> JobKey | None:
    """Return the job that a pod, or a resource of torchrelay, is about. None where it is about none, or cannot be read."""
    try:
        meta = manifest["metadata"]
        named = (meta.get("labels") or {}).get(kube.JOB) or (manifest.get("spec") or {}).get("job") or meta["name"]
        return JobKey(str(meta["namespace"]), str(named))
    except (KeyError, TypeError, AttributeError):
        return None


def read_pod(manifest: dict[str, Any]) -> Pod | None:
    """Return the pod, or None for a pod that takes part in no job."""
    meta = manifest["metadata"]
    labels = meta.get("labels") or {}
    if not (job := labels.get(kube.JOB)):
        return None
    spec = manifest["spec"]
    status = manifest.get("status") or {}
    return Pod(
        JobKey(meta["namespace"], job),
        meta["name"],
        meta["uid"],
        labels.get(kube.ROLE) == kube.SPARE,
        spec.get("nodeName") or "",
        status.get("phase") or "Pending",
        "deletionTimestamp" in meta,
        meta.get("creationTimestamp") or "",
        spec.get("restartPolicy", "Always") != "Never",
        _owner(meta),
        _workload(meta, labels),
        {k: v for k, v in (meta.get("annotations") or {}).items() if k.startswith(_OURS) or k == _DEFAULT_CONTAINER},
        tuple((c["name"], "terminated" in (c.get("state") or {})) for c in status.get("containerStatuses") or ()),
        tuple(map(_condition, status.get("conditions") or ())),
        pack(manifest),
    )


def _owner(meta: dict[str, Any]) -> PodOwner:
    owners = (o for o in meta.get("ownerReferences") or () if o.get("controller"))
    return next((PodOwner(o.get("kind") or "", o.get("uid") or "") for o in owners), PodOwner())


def _workload(meta: dict[str, Any], labels: Mapping[str, str]) -> Workload:
    """Return the workload that the pod belongs to. A JobSet's pods belong to the Jobs that it makes, and say whose these are."""
    if (name := labels.get(_JOBSET_NAME)) and (uid := labels.get(_JOBSET_UID)):
        return Workload(_JOBSET_API, "JobSet", name, uid)
    owners = (o for o in meta.get("ownerReferences") or () if o.get("controller"))
    of: dict[str, Any] = next(owners, {})
    return Workload(of.get("apiVersion") or "", of.get("kind") or "", of.get("name") or "", of.get("uid") or "")


def _condition(c: dict[str, Any]) -> PodCondition:
    return PodCondition(c["type"], c.get("status") or "", c.get("reason") or "", c.get("message") or "")
