"""Which container of a pod trains, and which pods are left alone."""

from __future__ import annotations

import posixpath
import re
from typing import Any

from torchrelay.protocol.errors import TorchrelayError, UserError
from torchrelay.protocol.kube import kube_names as kube

OTHERS_SIDECARS = frozenset(
    {"istio-proxy", "istio-validation", "linkerd-proxy", "vault-agent", "envoy", "otc-container"}
)
OPERATORS_NAMES = ("pytorch", "node", "trainer", "ray-worker", "ray-head")
"""What PyTorchJob, TrainJob and KubeRay call the container in which they run training."""
_LAUNCH_ENV = re.compile(r"RANK|WORLD_SIZE|PET_\w+")
_GPU = re.compile(r"(nvidia\.com/(gpu|mig-.+)|amd\.com/gpu|gpu\.intel\.com/.+|habana\.ai/gaudi)")
_NOT_PYTHON = {
    "mpirun",
    "mpiexec",
    "orted",
    "sshd",
    "sleep",
    "tail",
    "pause",
    "nginx",
    "envoy",
    "java",
    "node",
    "redis-server",
}
_READ_ONLY_SOURCES = ("configMap", "secret", "projected", "downwardAPI")

Pod = dict[str, Any]
Container = dict[str, Any]


class LeaveAloneError(TorchrelayError):
    """The pod runs as it is; the text says why, for the user."""


def training_container(pod: Pod, wanted: str) -> tuple[int, str]:
    """Return the index of the training container, and a note if it was guessed. Raises UserError if the wanted one is not there."""
    containers = pod["spec"]["containers"]
    all_names = [c["name"] for c in containers]
    if wanted:
        if wanted not in all_names:
            raise UserError(f'{kube.CONTAINER} names "{wanted}", and the pod has {", ".join(all_names)}')
        return all_names.index(wanted), ""
    left = [i for i, c in enumerate(containers) if c["name"] not in OTHERS_SIDECARS | {kube.AGENT_CONTAINER}]
    if not left:
        raise LeaveAloneError("it has no container but sidecars")
    for fits in (lambda c: True, _has_launch_env, gpus, lambda c: c["name"] in OPERATORS_NAMES):
        fitting = [i for i in left if fits(containers[i])]
        if len(fitting) == 1:
            return fitting[0], ""
    name = all_names[left[0]]
    return left[0], f"{name} was taken for the container that trains, as the first; {kube.CONTAINER} names another"


def gpus(container: Container) -> dict[str, str]:
    """Return the GPUs that the container asks for: the name of the resource, and the count."""
    limits = (container.get("resources") or {}).get("limits") or {}
    return {name: str(count) for name, count in sorted(limits.items()) if _GPU.fullmatch(name) and str(count) != "0"}


def check_can_be_injected(pod: Pod, container: Container) -> None:
    """Raise LeaveAloneError, with the reason, if the pod cannot be injected."""
    spec = pod["spec"]
    if (spec.get("os") or {}).get("name") == "windows":
        raise LeaveAloneError("it runs on Windows")
    if (spec.get("nodeSelector") or {}).get("kubernetes.io/os") == "windows":
        raise LeaveAloneError("it runs on Windows")
    command = container.get("command") or ()
    if command and posixpath.basename(command[0]) in _NOT_PYTHON:
        raise LeaveAloneError(f"{container['name']} runs {command[0]}, which is not Python")
    for volume in spec.get("volumes") or ():
        if volume["name"] in kube.OWN_VOLUMES:
            raise LeaveAloneError(f"it has a volume of its own with the name {volume['name']}")
    _check_mounts(spec, container)


def _check_mounts(spec: dict[str, Any], container: Container) -> None:
    read_only = {v["name"] for v in spec.get("volumes") or () if any(source in v for source in _READ_ONLY_SOURCES)}
    for mount in container.get("volumeMounts") or ():
        path = posixpath.normpath(mount["mountPath"])
        for ours in (kube.CODE_FOLDER, kube.RUN_FOLDER):
            if is_below(path, ours):
                raise LeaveAloneError(f"{container['name']} has a volume of its own at {path}, where {ours} has to be")
            if is_below(ours, path) and (mount.get("readOnly") or mount["name"] in read_only):
                raise LeaveAloneError(f"{container['name']} has a read-only volume at {path}: no room for {ours}")


def is_below(path: str, folder: str) -> bool:
    """Return whether the path is below the folder, or is the folder itself."""
    return path == folder or path.startswith(folder.rstrip("/") + "/")


def _has_launch_env(container: Container) -> bool:
    return any(_LAUNCH_ENV.fullmatch(e["name"]) for e in container.get("env") or ())
