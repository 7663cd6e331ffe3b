"""Writes down who makes, and who changes, what asks torchrelay for something: the API server knows it, the controller does not."""

from __future__ import annotations

from typing import Any

from torchrelay.protocol.kube import kube_names as kube
from torchrelay.protocol.kube.changed_by import written
from torchrelay.webhook.manifests.json_patch import Operation, difference

ASKING = ("Migration", "Quarantine", "SparePool")
"""Kinds of resources that people make."""
OURS = (kube.REQUESTED_BY, kube.CHANGED_BY)
MOST_CHARS = 256


def requested_by(resource: dict[str, Any], before: dict[str, Any] | None, user: Any) -> list[Operation]:
    """Return the patch that names the review's user. It overwrites what the resource itself says of that.

    `before`: the resource before a change. Who has made it stays, and who changes it is named with the generation to be.
    """
    meta = resource.get("metadata") or {}
    name = str(user.get("username", ""))[:MOST_CHARS] if isinstance(user, dict) else ""
    known = {kube.REQUESTED_BY: name} if before is None else _of_change(resource, before, name)
    said = meta.get("annotations") or {}
    annotations = {**{key: text for key, text in said.items() if key not in OURS}, **known}
    if annotations == said:
        return []
    return difference(resource, {**resource, "metadata": {**meta, "annotations": annotations}})


def _of_change(resource: dict[str, Any], before: dict[str, Any], name: str) -> dict[str, str]:
    meta = before.get("metadata") or {}
    known = {key: text for key, text in (meta.get("annotations") or {}).items() if key in OURS}
    if resource.get("spec") == before.get("spec"):
        return known
    return {**known, kube.CHANGED_BY: written(name, int(meta.get("generation", 0)) + 1)}
