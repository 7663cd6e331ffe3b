"""A pod in, a JSON patch out; nothing else is read or written. What is added, and why: docs/kubernetes.md."""

from __future__ import annotations

import copy
from dataclasses import dataclass, field
from typing import Any

from torchrelay.protocol import kube_annotations
from torchrelay.protocol import kube_names as kube
from torchrelay.protocol.errors import UserError
from torchrelay.protocol.kube_annotations import Wishes
from torchrelay.protocol.kube_owner import job_of, owner_of
from torchrelay.webhook.additions import Additions, additions
from torchrelay.webhook.json_patch import Operation, difference
from torchrelay.webhook.settings import VERSION, Settings
from torchrelay.webhook.target import Container, LeaveAloneError, Pod, check_can_be_injected, training_container
from torchrelay.webhook.training_env import training_env, training_mounts

_DEFAULT_CONTAINER = "kubectl.kubernetes.io/default-container"
_MIRROR = "kubernetes.io/config.mirror"


@dataclass(frozen=True)
class Decision:
    """`denied`: why the pod must not be made as it is; "" where it may. `notes`: what its owner should know."""

    patch: list[Operation] = field(default_factory=list)
    notes: tuple[str, ...] = ()
    denied: str = ""


def patch(pod: Pod, settings: Settings, authority: str) -> Decision:
    """`settings.sidecar` has to be decided. `authority`: PEM of what the controller's certificate comes from, "" if that is
    not known; a pod is not injected then, since its agent could trust nobody."""
    new, decision = injected(pod, settings, authority)
    return Decision(difference(pod, new), decision.notes, decision.denied)


def injected(pod: Pod, settings: Settings, authority: str) -> tuple[Pod, Decision]:
    """The pod as it should be. The one that was given stays as it is."""
    annotations = (pod.get("metadata") or {}).get("annotations") or {}
    if kube.INJECT not in annotations or _MIRROR in annotations:
        return pod, Decision()
    try:
        wishes = kube_annotations.read(annotations)
        if not wishes.inject:
            return pod, Decision()
        index = _already_in(pod)
        if index is not None:
            return _completed(pod, index, wishes)
        index, note = training_container(pod, wishes.container)
        container = pod["spec"]["containers"][index]
        check_can_be_injected(pod, container)
        if not authority:
            raise LeaveAloneError("the controller has not published its certificate authority yet")
    except UserError as e:
        return pod, Decision(denied=str(e))
    except LeaveAloneError as e:
        return _left_alone(pod, f"not injected: {e}")
    new, notes = _with_training_side(pod, index, wishes)
    added = additions(pod, container, wishes, settings, authority)
    _add(new["spec"], copy.deepcopy(added))
    unknown = kube_annotations.unknown(annotations)
    all_notes = [n for n in (note, *notes, *added.notes) if n] + [
        f"{name} is no annotation of torchrelay" for name in unknown
    ]
    _share_processes(new["spec"], all_notes)
    _mark(new, container, all_notes)
    return new, Decision(notes=tuple(all_notes))


def _already_in(pod: Pod) -> int | None:
    """The index of the training container, if the pod has an agent: made here before, or a clone of such a pod."""
    spec = pod["spec"]
    if not any(c["name"] == kube.AGENT_CONTAINER for c in [*spec["containers"], *(spec.get("initContainers") or ())]):
        return None
    for i, container in enumerate(spec["containers"]):
        mounted = {m["name"] for m in container.get("volumeMounts") or ()}
        if container["name"] != kube.AGENT_CONTAINER and kube.RUN_VOLUME in mounted:
            return i
    return None


def _completed(pod: Pod, index: int, wishes: Wishes) -> tuple[Pod, Decision]:
    """Somebody who came after us may have taken something of ours away; all else stays."""
    new, notes = _with_training_side(pod, index, wishes)
    return new, Decision(notes=tuple(notes))


def _with_training_side(pod: Pod, index: int, wishes: Wishes) -> tuple[Pod, list[str]]:
    new = copy.deepcopy(pod)
    container: Container = new["spec"]["containers"][index]
    env, notes = training_env(container.get("env") or [], wishes)
    container["env"] = env
    there = container.get("volumeMounts") or []
    names = {m["name"] for m in there}
    container["volumeMounts"] = [*there, *(m for m in training_mounts() if m["name"] not in names)]
    return new, notes


def _add(spec: dict[str, Any], added: Additions) -> None:
    volumes = {v["name"] for v in spec.get("volumes") or ()}
    spec["volumes"] = [*(spec.get("volumes") or ()), *(v for v in added.volumes if v["name"] not in volumes)]
    init = [added.init, added.agent] if added.native else [added.init]
    spec["initContainers"] = [*(spec.get("initContainers") or ()), *init]
    if not added.native:
        spec["containers"] = [*spec["containers"], added.agent]


def _share_processes(spec: dict[str, Any], notes: list[str]) -> None:
    """So that the agent sees the training processes, and can end one that hangs."""
    if spec.get("hostPID"):
        return  # shared with the whole node already, and Kubernetes allows only one of both
    if spec.get("shareProcessNamespace") is False:
        notes.append(
            "shareProcessNamespace is false: the agent does not see training, and a hang ends with its pod alone"
        )
    else:
        spec["shareProcessNamespace"] = True


def _mark(new: Pod, container: Container, notes: list[str]) -> None:
    metadata = new["metadata"]
    labels, annotations = metadata.get("labels") or {}, metadata["annotations"]
    owner = owner_of(new)
    metadata["labels"] = {**labels, kube.JOB: job_of(new), kube.ROLE: labels.get(kube.ROLE) or kube.WORKER}
    annotations.setdefault(_DEFAULT_CONTAINER, container["name"])
    annotations[kube.INJECTED] = VERSION
    if owner:
        annotations.setdefault(kube.OWNER, owner.text)
    if notes:
        annotations[kube.NOTES] = "; ".join(notes)


def _left_alone(pod: Pod, note: str) -> tuple[Pod, Decision]:
    new = copy.deepcopy(pod)
    new["metadata"]["annotations"][kube.NOT_INJECTED] = note
    return new, Decision(notes=(note,))
