"""What the controller reads from a pod. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

from torchrelay.protocol import kube_names as kube

_OVER = ("Succeeded", "Failed")


class JobKey(NamedTuple):
    """One job: pods of one namespace with the same label."""

    namespace: str
    name: str

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}"


@dataclass(frozen=True)
class Pod:
    """`node` is empty until it is scheduled; `manifest` is all of it."""

    key: JobKey
    name: str
    uid: str
    is_spare: bool
    node: str
    phase: str
    leaves: bool
    manifest: dict[str, Any]

    @property
    def agent(self) -> str:
        """The name under which its agent speaks."""
        return f"{self.name}:{self.uid[:8]}"

    @property
    def is_over(self) -> bool:
        return self.phase in _OVER

    @property
    def may_serve(self) -> bool:
        """Whether a training process lives in it, or will: the kubelet may start one again."""
        if self.is_over or self.leaves:
            return False
        status = self.manifest.get("status") or {}
        if self.starts_again:
            return True
        ours = (kube.AGENT_CONTAINER,)
        trainers = [c for c in status.get("containerStatuses") or () if c["name"] not in ours]
        name = self.annotations.get(kube.CONTAINER) or _default_container(self.annotations)
        named = [c for c in trainers if c["name"] == name] or trainers
        return not named or not all("terminated" in (c.get("state") or {}) for c in named)

    @property
    def starts_again(self) -> bool:
        """Whether the kubelet starts a process of it that was killed again."""
        restarts = self.manifest["spec"].get("restartPolicy", "Always") != "Never"
        return restarts and not self.is_over and not self.leaves

    @property
    def unscheduled(self) -> str:
        """Why the scheduler finds no node for it, or empty."""
        conditions = (self.manifest.get("status") or {}).get("conditions") or ()
        found = (c for c in conditions if c["type"] == "PodScheduled" and c["status"] == "False")
        return next((f"{self.name}: {c.get('message') or c.get('reason') or 'no node'}" for c in found), "")

    @property
    def has_controller(self) -> bool:
        """Whether somebody makes it again when it has failed."""
        return any(o.get("controller") for o in self.manifest["metadata"].get("ownerReferences") or ())

    @property
    def annotations(self) -> dict[str, str]:
        return self.manifest["metadata"].get("annotations") or {}

    @property
    def is_injected(self) -> bool:
        return kube.INJECTED in self.annotations


def _default_container(annotations: dict[str, str]) -> str:
    return annotations.get("kubectl.kubernetes.io/default-container", "")


def read_pod(manifest: dict[str, Any]) -> Pod | None:
    """None for a pod that is none of ours."""
    meta = manifest["metadata"]
    labels = meta.get("labels") or {}
    if not (job := labels.get(kube.JOB)):
        return None
    return Pod(
        JobKey(meta["namespace"], job),
        meta["name"],
        meta["uid"],
        labels.get(kube.ROLE) == kube.SPARE,
        manifest["spec"].get("nodeName") or "",
        (manifest.get("status") or {}).get("phase") or "Pending",
        "deletionTimestamp" in meta,
        manifest,
    )
