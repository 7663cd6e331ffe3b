"""What the training container gets: environment and mounts, and nothing else of it is touched."""

from __future__ import annotations

from typing import Any

from torchrelay.protocol import names
from torchrelay.protocol.kube import kube_names as kube
from torchrelay.protocol.kube.annotations import PodAnnotations
from torchrelay.protocol.logs.log_lines import LogFormat
from torchrelay.protocol.security.transfer_protection import INTEGRITY

PYTHONPATH = "PYTHONPATH"
Variable = dict[str, Any]


def field(name: str, path: str) -> Variable:
    """Return a variable whose value is a field of the pod, known only when the pod runs."""
    return {"name": name, "valueFrom": {"fieldRef": {"apiVersion": "v1", "fieldPath": path}}}


def value(name: str, text: str) -> Variable:
    return {"name": name, "value": text}


def training_mounts(wishes: PodAnnotations) -> list[dict[str, Any]]:
    return [
        {"name": kube.CODE_VOLUME, "mountPath": kube.CODE_FOLDER, "readOnly": True},
        {"name": kube.RUN_VOLUME, "mountPath": kube.RUN_FOLDER},
        *kept_mounts(wishes),
    ]


def kept_mounts(wishes: PodAnnotations) -> list[dict[str, Any]]:
    """Return the mounts of the folder with copies. Training needs it, and so does the agent, which reports the copies."""
    return [{"name": kube.KEPT_VOLUME, "mountPath": kube.KEPT_FOLDER}] if wishes.copies_every else []


def training_env(
    env: list[Variable], wishes: PodAnnotations, grace_s: int | None = None, json_lines: bool = False
) -> tuple[list[Variable], list[str]]:
    """Return the environment with torchrelay's variables, and notes about variables that could not be set.

    `grace_s`: the pod's grace period, if it names one. `json_lines`: torchrelay's lines in the log are JSON.
    """
    new = _chained(env)
    notes = []
    if wishes.buddy_every and not wishes.copies_every:
        notes.append(f"{kube.BUDDY_EVERY} has no effect with {kube.POLICY} {wishes.policy}: no lost rank is replaced")
    for ours in (*_ours(wishes, grace_s), *(_of_logs() if json_lines else ()), *_hash_seed(env)):
        there = [e for e in new if e["name"] == ours["name"]]
        if not there:
            new.append(ours)
        elif any(_meaning(e) != _meaning(ours) for e in there):
            notes.append(f"{ours['name']} is set by the pod itself and stays as it is")
    return new, notes


def _ours(wishes: PodAnnotations, grace_s: int | None) -> list[Variable]:
    variables = [
        value(names.ENV_ROOTS, kube.ROOT_FOLDER),
        value(names.ENV_SOCKET, kube.SOCKET_PATH),
        value(names.ENV_JOURNAL, kube.JOURNAL_FOLDER),
        field(names.ENV_WORKER, "metadata.name"),
        value(names.ENV_TOKEN_FILE, kube.SHIM_TOKEN_PATH),
        field(names.ENV_ADDRESS, "status.podIP"),
        value(kube.ENV_ASK, "1"),
    ]
    if grace_s is not None:
        variables.append(value(names.ENV_GRACE, str(grace_s)))
    if wishes.copies_every:
        variables += [value(names.ENV_BUDDY_EVERY, str(wishes.copies_every)), value(names.ENV_KEPT, kube.KEPT_FOLDER)]
        if wishes.buddy_sync:
            variables.append(value(names.ENV_BUDDY_SYNC, "1"))
    if wishes.protection != INTEGRITY:
        variables.append(value(names.ENV_TRANSFER, wishes.protection))
    if wishes.checkpoint_dir:
        variables.append(value(kube.ENV_CHECKPOINT_DIR, wishes.checkpoint_dir))
    return variables


def json_lines_of(namespace: str, job: str) -> str:
    """Return a value for the log format: JSON, with the id that the controller has for the job.

    The kubelet fills in namespace and job, from two variables that come before this one.
    """
    return f"{LogFormat.JSON.value} $({namespace})/$({job})"


def _of_logs() -> list[Variable]:
    return [
        field(names.ENV_LOG_NAMESPACE, "metadata.namespace"),
        field(names.ENV_LOG_JOB, f"metadata.labels['{kube.JOB}']"),
        value(names.ENV_LOG, json_lines_of(names.ENV_LOG_NAMESPACE, names.ENV_LOG_JOB)),
    ]


def _hash_seed(env: list[Variable]) -> list[Variable]:
    """Fix the hash seed, so that sets of strings have one order in all processes of a job. A seed that the pod has chosen stays."""
    if any(e["name"] == names.HASH_SEED_VARIABLE and _meaning(e) != names.HASH_SEED for e in env):
        return []
    return [value(names.HASH_SEED_VARIABLE, names.HASH_SEED), value(names.ENV_HASH_SEED_WAS, "")]


def _chained(env: list[Variable]) -> list[Variable]:
    """Put torchrelay's folder first in PYTHONPATH.

    The user's entry keeps its place and its form under another name, and PYTHONPATH refers to that name. So a value from a
    ConfigMap, or a value with references of its own, stays what it was.
    """
    at = _last(env, PYTHONPATH)
    if at is None:
        return [*env, value(PYTHONPATH, kube.SITE_FOLDER)]
    theirs = env[at]
    folders = (theirs.get("value") or "").split(":")
    if folders[0] == kube.SITE_FOLDER:
        return list(env)
    if kube.SITE_FOLDER in folders:
        # Somebody came after us and went in front, perhaps with a sitecustomize that loads no other.
        was = _last(env, names.ENV_PYTHONPATH_WAS)
        if was is not None and "valueFrom" in env[was]:
            return list(env)
        before = "" if was is None else env[was].get("value") or ""
        others = ":".join(f for f in folders if f != kube.SITE_FOLDER)
        theirs = value(PYTHONPATH, others.replace(f"$({names.ENV_PYTHONPATH_WAS})", before))
    # An empty entry of PYTHONPATH would mean the current folder.
    some = bool(theirs.get("value") or theirs.get("valueFrom"))
    text = f"{kube.SITE_FOLDER}:$({names.ENV_PYTHONPATH_WAS})" if some else kube.SITE_FOLDER
    before_it, after_it = (
        [e for e in part if e["name"] != names.ENV_PYTHONPATH_WAS] for part in (env[:at], env[at + 1 :])
    )
    return [*before_it, {**theirs, "name": names.ENV_PYTHONPATH_WAS}, value(PYTHONPATH, text), *after_it]


def _last(env: list[Variable], name: str) -> int | None:
    """Return the index of the last variable of this name, since Kubernetes takes the last of several; None if there is none."""
    return max((i for i, e in enumerate(env) if e["name"] == name), default=None)


def _meaning(variable: Variable) -> Any:
    """Return what a variable means, to compare two: the API server fills in `apiVersion` of a fieldRef, which changes nothing."""
    source = variable.get("valueFrom")
    if not source:
        return variable.get("value") or ""
    reference = source.get("fieldRef")
    return ("field", reference.get("fieldPath")) if reference else source
