"""Writes down who made a resource that asks torchrelay for something: the API server knows, the controller does not."""

from __future__ import annotations

from typing import Any

from torchrelay.protocol.kube import kube_names as kube
from torchrelay.webhook.manifests.json_patch import Operation, difference

ASKING = ("Migration", "Quarantine")
"""Kinds of resources that people make."""
MOST_CHARS = 256


def requested_by(resource: dict[str, Any], user: Any) -> list[Operation]:
    """Return the patch that names the review's user. It overwrites what the resource itself says of that."""
    meta = resource.get("metadata") or {}
    name = str(user.get("username", ""))[:MOST_CHARS] if isinstance(user, dict) else ""
    annotations = {**(meta.get("annotations") or {}), kube.REQUESTED_BY: name}
    return difference(resource, {**resource, "metadata": {**meta, "annotations": annotations}})
