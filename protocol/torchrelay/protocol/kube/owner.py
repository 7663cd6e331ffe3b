"""Which job a pod belongs to: found from what the pod shows, since a webhook asks nobody."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from torchrelay.protocol.kube import kube_names as kube

MAX_LABEL_CHARS = 63
_HASH_CHARS = 8
_PART = r"[a-z0-9]([-a-z0-9]*[a-z0-9])?"
_OBJECT_NAME = re.compile(rf"{_PART}(\.{_PART})*")

OWNER_LABELS = (
    ("trainer.kubeflow.org/trainjob-name", "TrainJob"),
    ("jobset.sigs.k8s.io/jobset-name", "JobSet"),
    ("training.kubeflow.org/job-name", "PyTorchJob"),
    ("ray.io/cluster", "RayCluster"),
    ("batch.kubernetes.io/job-name", "Job"),
    ("job-name", "Job"),
)
"""The outermost first: a JobSet's pods carry the labels of their Job too. A TrainJob's JobSet has the TrainJob's name."""


@dataclass(frozen=True)
class Owner:
    """The workload that a person made."""

    kind: str
    name: str

    @property
    def text(self) -> str:
        return f"{self.kind}/{self.name}"

    @property
    def job(self) -> str:
        """Return the name for the job's label. A name longer than a label may be is cut, and ends with a hash."""
        if len(self.name) <= MAX_LABEL_CHARS:
            return self.name
        digest = hashlib.sha256(self.name.encode()).hexdigest()[:_HASH_CHARS]
        return f"{self.name[: MAX_LABEL_CHARS - _HASH_CHARS - 1].rstrip('-.')}-{digest}"


def owner_of(pod: Mapping[str, Any]) -> Owner | None:
    """Return the pod's owner; None for a pod with neither name nor owner, which no cluster has."""
    metadata = pod.get("metadata") or {}
    labels = metadata.get("labels") or {}
    controllers = [Owner(r["kind"], r["name"]) for r in metadata.get("ownerReferences") or () if r.get("controller")]
    for label, kind in OWNER_LABELS:
        if name := labels.get(label):
            # Kubeflow's label is on the pods of all its kinds of jobs.
            return next((owner for owner in controllers if owner.name == name), Owner(kind, name))
    if controllers:
        return controllers[0]
    name = metadata.get("name") or (metadata.get("generateName") or "").rstrip("-.")
    return Owner("Pod", name) if name else None


def job_of(pod: Mapping[str, Any]) -> str:
    """Return the value of the job's label: the pod's own label, else the owner's name. Empty if the pod has neither."""
    labels = (pod.get("metadata") or {}).get("labels") or {}
    if labels.get(kube.JOB):
        return str(labels[kube.JOB])
    owner = owner_of(pod)
    return owner.job if owner else ""


def name_problem(pod: Mapping[str, Any]) -> str:
    """Return why objects cannot be named after the job; empty if they can. A label allows more than the name of an object."""
    job = job_of(pod)
    if not job or _OBJECT_NAME.fullmatch(job):
        return ""
    allowed = "lower case letters, digits, - and ., with a letter or digit at both ends"
    if (pod.get("metadata") or {}).get("labels", {}).get(kube.JOB):
        return f'the label {kube.JOB} is "{job}", and names objects of the job: it has to be of {allowed}'
    return f'the job is called "{job}", and objects cannot be: set the label {kube.JOB} to a name of {allowed}'
