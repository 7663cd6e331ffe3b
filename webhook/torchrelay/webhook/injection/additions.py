"""The containers and volumes that are added to a pod."""

from __future__ import annotations

import copy
import posixpath
from dataclasses import dataclass
from typing import Any

from torchrelay.protocol import names
from torchrelay.protocol.kube import kube_names as kube
from torchrelay.protocol.kube.annotations import PodAnnotations
from torchrelay.protocol.logs.log_lines import LogFormat
from torchrelay.webhook.injection.target import Container, Pod, gpus, is_below
from torchrelay.webhook.injection.training_env import Variable, field, json_lines_of, kept_mounts, value
from torchrelay.webhook.settings import WebhookSettings

COUNTED = ("cpu", "memory")
"""What makes a pod's quality of service."""
_NO_RUN_TIME_CHANGES = ("mountPropagation", "recursiveReadOnly")


@dataclass(frozen=True)
class Additions:
    """What is added to a pod.

    `native`: the agent is an init container that keeps running, started after `init`. Otherwise it is one more container.
    """

    volumes: list[dict[str, Any]]
    init: Container
    agent: Container
    native: bool
    notes: list[str]


def additions(
    pod: Pod, container: Container, wishes: PodAnnotations, settings: WebhookSettings, authority: str
) -> Additions:
    """Return what to add to a pod whose training container is `container`.

    `authority`: PEM of the authority that signs the controller's certificate.
    """
    security, notes = security_context(pod, container)
    common = {
        "image": settings.agent.image,
        "imagePullPolicy": settings.agent.imagePullPolicy,
        "resources": _resources(pod, settings),
        "securityContext": security,
    }
    init = {
        "name": kube.INIT_CONTAINER,
        **common,
        "command": [*settings.agent.commandPrefix, "-m", "torchrelay.agent.install_shim", kube.CODE_FOLDER],
        "env": settings.agent.env,
        "volumeMounts": [*settings.agent.volumeMounts, {"name": kube.CODE_VOLUME, "mountPath": kube.CODE_FOLDER}],
    }
    mounts = [
        *settings.agent.volumeMounts,
        {"name": kube.RUN_VOLUME, "mountPath": kube.RUN_FOLDER},
        *kept_mounts(wishes),
        {"name": kube.TOKEN_VOLUME, "mountPath": kube.TOKEN_FOLDER, "readOnly": True},
    ]
    if wishes.checkpoint_dir:
        checkpoints, note = _checkpoint_mount(pod, container, wishes.checkpoint_dir, mounts)
        mounts += checkpoints
        notes += note
    native = settings.sidecar == kube.NATIVE
    agent = {
        "name": kube.AGENT_CONTAINER,
        **common,
        "command": [*settings.agent.commandPrefix, "-m", "torchrelay.agent.pod"],
        "env": _agent_env(pod, container, wishes, settings, authority),
        "volumeMounts": mounts,
    }
    if answers_prometheus(pod, settings):
        agent["ports"] = [{"name": kube.AGENT_METRICS_PORT_NAME, "containerPort": settings.agent.metricsPort}]
    if native:
        agent["restartPolicy"] = "Always"
    return Additions(_volumes(settings, wishes), init, agent, native, notes)


def _volumes(settings: WebhookSettings, wishes: PodAnnotations) -> list[dict[str, Any]]:
    # It has no limit of its own: it is as large as the state makes it, and counts as training's memory.
    kept = [{"name": kube.KEPT_VOLUME, "emptyDir": {"medium": "Memory"}}] if wishes.copies_every else []
    token = {"path": kube.TOKEN_FILE, "audience": kube.TOKEN_AUDIENCE, "expirationSeconds": kube.TOKEN_LIFETIME_S}
    return [
        {"name": kube.CODE_VOLUME, "emptyDir": {}},
        {"name": kube.RUN_VOLUME, "emptyDir": {"medium": "Memory", "sizeLimit": settings.runSizeLimit}},
        *kept,
        {"name": kube.TOKEN_VOLUME, "projected": {"sources": [{"serviceAccountToken": token}]}},
        *settings.agent.volumes,
    ]


def _agent_env(
    pod: Pod, container: Container, wishes: PodAnnotations, settings: WebhookSettings, authority: str
) -> list[Variable]:
    env = [
        value(kube.ENV_CONTROLLER, settings.controller.address),
        value(kube.ENV_ENROLL, settings.controller.enroll),
        value(kube.ENV_CA, authority),
        field(kube.ENV_POD, "metadata.name"),
        field(kube.ENV_POD_UID, "metadata.uid"),
        field(kube.ENV_NAMESPACE, "metadata.namespace"),
        field(kube.ENV_JOB, f"metadata.labels['{kube.JOB}']"),
        field(kube.ENV_NODE, "spec.nodeName"),
        field(kube.ENV_POD_IP, "status.podIP"),
        value(kube.ENV_CONTAINER, container["name"]),
        value(kube.ENV_SIDECAR, settings.sidecar),
        value(kube.ENV_RESTART_POLICY, pod["spec"].get("restartPolicy") or "Always"),
    ]
    if settings.agent.logFormat == LogFormat.JSON.value:
        env.append(value(names.ENV_LOG, json_lines_of(kube.ENV_NAMESPACE, kube.ENV_JOB)))
    if settings.agent.logLevel:
        env.append(value(names.ENV_LOG_LEVEL, settings.agent.logLevel))
    if (user := user_of(pod, container)) is not None:
        env.append(value(kube.ENV_TRAINING_USER, str(user)))
    if answers_prometheus(pod, settings):
        env.append(value(kube.ENV_METRICS_PORT, str(settings.agent.metricsPort)))
    if wishes.checkpoint_dir:
        env.append(value(kube.ENV_CHECKPOINT_DIR, wishes.checkpoint_dir))
    if asked := gpus(container):
        env.append(value(kube.ENV_GPUS, ",".join(f"{name}={count}" for name, count in asked.items())))
        if settings.agent.watchGPUs and any(name.startswith("nvidia.com/") for name in asked):
            env += [value("NVIDIA_VISIBLE_DEVICES", "all"), value("NVIDIA_DRIVER_CAPABILITIES", "utility")]
    return env + settings.agent.env


def answers_prometheus(pod: Pod, settings: WebhookSettings) -> bool:
    """Return whether the agent names a port for Prometheus.

    Not on the host's network: only one pod of each node can have a port that is named there, so the others would wait for ever.
    """
    return settings.agent.metricsPort > 0 and not pod["spec"].get("hostNetwork")


def user_of(pod: Pod, container: Container) -> int | None:
    """Return the user that the container runs as; None if its image decides."""
    of_pod = pod["spec"].get("securityContext") or {}
    own = container.get("securityContext") or {}
    user = {**of_pod, **own}.get("runAsUser")
    return None if user is None else int(user)


def sees_training(pod: Pod, container: Container) -> bool:
    """Return whether the agent may run as the user of the container's processes, and so could end them if it sees them.

    If the pod names no user, the image decides, and in most images that is root: the agent is root then, without rights over other
    users. If the image has another user, the agent sees a hang and cannot end it; only the agent can find that out, and it says so.
    """
    of_pod = pod["spec"].get("securityContext") or {}
    own = container.get("securityContext") or {}
    return user_of(pod, container) is not None or not {**of_pod, **own}.get("runAsNonRoot")


def security_context(pod: Pod, container: Container) -> tuple[dict[str, Any], list[str]]:
    """Give the agent as few rights as can be, and the user of the training container: only its own user can signal a process."""
    of_pod = pod["spec"].get("securityContext") or {}
    own = container.get("securityContext") or {}
    merged = {**of_pod, **own}
    context: dict[str, Any] = {
        "allowPrivilegeEscalation": False,
        "capabilities": {"drop": ["ALL"]},
        "readOnlyRootFilesystem": True,
        "seccompProfile": {"type": "RuntimeDefault"},
    }
    user = merged.get("runAsUser")
    must_not_be_root = merged.get("runAsNonRoot")
    notes = []
    if user is None and must_not_be_root:
        notes.append(
            f"{container['name']} does not say as which user it runs, so the agent runs as another and cannot end a hung "
            "process; set runAsUser"
        )
    else:
        context["runAsUser"] = user or 0
    if context.get("runAsUser") != 0:
        context["runAsNonRoot"] = True
    elif of_pod.get("runAsNonRoot"):
        context["runAsNonRoot"] = False  # as the training container must have said for itself
    for name in ("runAsGroup", "seLinuxOptions"):
        if own.get(name) is not None:
            context[name] = own[name]
    return context, notes


def _resources(pod: Pod, settings: WebhookSettings) -> dict[str, Any]:
    """Return the agent's resources, so that a pod whose containers all have limits equal to requests stays such a pod."""
    if pod["spec"].get("resources"):
        return {}  # one budget for the whole pod, and what containers ask for must not go beyond it
    configured = copy.deepcopy(settings.agent.resources)
    if not is_guaranteed(pod):
        return configured
    both = {**configured.get("requests", {}), **configured.get("limits", {})}
    return {"requests": both, "limits": dict(both)}


def is_guaranteed(pod: Pod) -> bool:
    """Return whether the pod is of the class Guaranteed, by Kubernetes' own rule."""
    spec = pod["spec"]
    for container in [*(spec.get("initContainers") or ()), *spec["containers"]]:
        resources = container.get("resources") or {}
        limits = resources.get("limits") or {}
        requests = resources.get("requests") or {}
        if any(name not in limits or str(requests.get(name, limits[name])) != str(limits[name]) for name in COUNTED):
            return False
    return True


def _checkpoint_mount(
    pod: Pod, container: Container, folder: str, taken: list[dict[str, Any]]
) -> tuple[list[dict[str, Any]], list[str]]:
    """Return a read-only mount of the training container's volume with the checkpoints, and notes if there can be none.

    The agent looks there which checkpoints are complete.
    """
    mounts = [m for m in container.get("volumeMounts") or () if is_below(folder, posixpath.normpath(m["mountPath"]))]
    if not mounts:
        return [], [f"{kube.CHECKPOINT_DIR} {folder} is on no volume: what is saved there is lost with the pod"]
    mount = max(mounts, key=lambda m: len(posixpath.normpath(m["mountPath"])))
    if "subPathExpr" in mount:
        return [], [
            f"{kube.CHECKPOINT_DIR} {folder} is on a volume with a subPathExpr: the agent cannot look at checkpoints"
        ]
    if any(m["mountPath"] == mount["mountPath"] for m in taken):
        return [], [
            f"{kube.CHECKPOINT_DIR} {folder} is where the agent has a volume of its own: it cannot look at checkpoints"
        ]
    kept = {k: v for k, v in mount.items() if k not in _NO_RUN_TIME_CHANGES}
    return [{**kept, "readOnly": True}], []
