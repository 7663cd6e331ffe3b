"""A pod in, a JSON patch out; nothing else is read or written. What is added, and why: docs/kubernetes.md."""

from __future__ import annotations

import copy
import dataclasses
from dataclasses import dataclass, field
from typing import Any

from torchrelay.protocol.errors import UserError
from torchrelay.protocol.kube import annotations as kube_annotations
from torchrelay.protocol.kube import kube_names as kube
from torchrelay.protocol.kube.annotations import PodAnnotations
from torchrelay.protocol.kube.owner import job_of, name_problem, owner_of
from torchrelay.protocol.logs.log_lines import LogFormat
from torchrelay.webhook.injection.additions import Additions, additions, sees_training
from torchrelay.webhook.injection.launchers import processes_note
from torchrelay.webhook.injection.target import (
    Container,
    LeaveAloneError,
    Pod,
    check_can_be_injected,
    training_container,
)
from torchrelay.webhook.injection.training_env import training_env, training_mounts
from torchrelay.webhook.manifests.json_patch import Operation, difference
from torchrelay.webhook.settings import VERSION, WebhookSettings

_DEFAULT_CONTAINER = "kubectl.kubernetes.io/default-container"
_MIRROR = "kubernetes.io/config.mirror"


@dataclass(frozen=True)
class PodDecision:
    """What is done about a pod. `denied`: why it must not be made as it is; "" if it may. `notes`: what its owner should know."""

    patch: list[Operation] = field(default_factory=list)
    notes: tuple[str, ...] = ()
    denied: str = ""


def patch(pod: Pod, settings: WebhookSettings, authority: str | None) -> PodDecision:
    """Decide about a pod, and return the patch. `settings.sidecar` has to be decided before.

    `authority`: PEM of the authority that signs the controller's certificate. "" if there is none yet: the pod is not injected
    then, since its agent could trust nobody. None: the webhook fills it in when the pod is made.
    """
    new, decision = injected(pod, settings, authority)
    return PodDecision(difference(pod, new), decision.notes, decision.denied)


def injected(pod: Pod, settings: WebhookSettings, authority: str | None) -> tuple[Pod, PodDecision]:
    """Return the pod as it should be. The pod that was given stays unchanged."""
    annotations = (pod.get("metadata") or {}).get("annotations") or {}
    if kube.INJECT not in annotations or _MIRROR in annotations:
        return pod, PodDecision()
    try:
        wishes = kube_annotations.read(annotations)
        if not wishes.inject:
            return pod, PodDecision()
        if problem := name_problem(pod):
            raise UserError(problem)
        if _has_agent(pod):
            return _completed(pod, wishes, settings, authority or "")
        index, note = training_container(pod, wishes.container)
        container = pod["spec"]["containers"][index]
        check_can_be_injected(pod, container)
        if authority == "":
            raise LeaveAloneError("the controller has not published its certificate authority yet")
    except UserError as e:
        return pod, PodDecision(denied=str(e))
    except LeaveAloneError as e:
        return _left_alone(pod, f"not injected: {e}")
    new, notes = _with_training_side(pod, index, wishes, settings)
    added = additions(pod, container, wishes, settings, authority or "")
    _add(new["spec"], copy.deepcopy(added))
    unknown = kube_annotations.unknown(annotations)
    all_notes = [n for n in (note, processes_note(container), *notes, *added.notes) if n] + [
        f"{name} is no annotation of torchrelay" for name in unknown
    ]
    if sees_training(pod, container):
        _share_processes(new["spec"], all_notes)
    if new["spec"].get("hostNetwork") and new["spec"].get("dnsPolicy") not in ("ClusterFirstWithHostNet", "None"):
        all_notes.append("with hostNetwork the agent finds the controller only if dnsPolicy is ClusterFirstWithHostNet")
    _mark(new, container, all_notes)
    return new, PodDecision(notes=tuple(all_notes))


def _has_agent(pod: Pod) -> bool:
    """Return whether the pod has an agent: it was injected before, or it is a clone of such a pod."""
    spec = pod["spec"]
    return any(c["name"] == kube.AGENT_CONTAINER for c in [*spec["containers"], *(spec.get("initContainers") or ())])


def _completed(pod: Pod, wishes: PodAnnotations, settings: WebhookSettings, authority: str) -> tuple[Pod, PodDecision]:
    """Complete a pod that has an agent already. Raises what training_container raises.

    Another webhook may have removed something of ours, and a template that was prepared without a cluster lacks the authority.
    Everything else stays.
    """
    ours = {kube.CODE_VOLUME, kube.RUN_VOLUME}
    with_ours = [
        i
        for i, container in enumerate(pod["spec"]["containers"])
        if container["name"] != kube.AGENT_CONTAINER
        and ours & {mount["name"] for mount in container.get("volumeMounts") or ()}
    ]
    index = with_ours[0] if with_ours else training_container(pod, wishes.container)[0]
    if kube.KEPT_VOLUME not in {volume["name"] for volume in pod["spec"].get("volumes") or ()}:
        wishes = dataclasses.replace(wishes, buddy_every=0)  # whoever prepared it did not know of it
    new, notes = _with_training_side(pod, index, wishes, settings)
    for container in [*new["spec"]["containers"], *(new["spec"].get("initContainers") or ())]:
        for variable in container.get("env") or () if container["name"] == kube.AGENT_CONTAINER else ():
            if variable["name"] == kube.ENV_CA and authority:  # a spare is copied from a pod that may be older than it
                variable["value"] = authority
    return new, PodDecision(notes=tuple(notes))


def _with_training_side(
    pod: Pod, index: int, wishes: PodAnnotations, settings: WebhookSettings
) -> tuple[Pod, list[str]]:
    new = copy.deepcopy(pod)
    container: Container = new["spec"]["containers"][index]
    grace_s = pod["spec"].get("terminationGracePeriodSeconds")
    as_json = settings.agent.logFormat == LogFormat.JSON.value
    env, notes = training_env(container.get("env") or [], wishes, grace_s, as_json)
    container["env"] = env
    there = container.get("volumeMounts") or []
    names = {m["name"] for m in there}
    container["volumeMounts"] = [*there, *(m for m in training_mounts(wishes) if m["name"] not in names)]
    return new, notes


def _add(spec: dict[str, Any], added: Additions) -> None:
    volumes = {v["name"] for v in spec.get("volumes") or ()}
    spec["volumes"] = [*(spec.get("volumes") or ()), *(v for v in added.volumes if v["name"] not in volumes)]
    init = [added.init, added.agent] if added.native else [added.init]
    spec["initContainers"] = [*(spec.get("initContainers") or ()), *init]
    if not added.native:
        spec["containers"] = [*spec["containers"], added.agent]


def _share_processes(spec: dict[str, Any], notes: list[str]) -> None:
    """Let the agent see the training processes, so that it can end one that hangs. If the pod forbids it, add a note.

    Not used for processes that certainly belong to another user.
    """
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
    labels = metadata.get("labels") or {}
    annotations = metadata["annotations"]
    owner = owner_of(new)
    metadata["labels"] = {**labels, kube.JOB: job_of(new), kube.ROLE: labels.get(kube.ROLE) or kube.WORKER}
    annotations.setdefault(_DEFAULT_CONTAINER, container["name"])
    annotations[kube.INJECTED] = VERSION
    if owner:
        annotations.setdefault(kube.OWNER, owner.text)
    if notes:
        annotations[kube.NOTES] = "; ".join(notes)


def _left_alone(pod: Pod, note: str) -> tuple[Pod, PodDecision]:
    new = copy.deepcopy(pod)
    new["metadata"]["annotations"][kube.NOT_INJECTED] = note
    return new, PodDecision(notes=(note,))
