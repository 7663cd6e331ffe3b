"""Who has changed a resource last, as the webhook has written it down. Pure.

A change that the webhook has not seen is not taken for the change before: `kubectl scale`, and changes while it was away.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torchrelay.protocol.kube import kube_names as kube


def written(user: str, generation: int) -> str:
    """Return the annotation's text. `generation`: the one that the resource has from this change on."""
    return f"{generation} {user}"


def changed_by(resource: Mapping[str, Any]) -> str:
    """Return the API's user whose change made the `spec` what it is; if unknown, what is known of that person; or nothing."""
    meta = resource.get("metadata") or {}
    annotations = meta.get("annotations") or {}
    generation, _, user = str(annotations.get(kube.CHANGED_BY, "")).partition(" ")
    if user and generation == str(meta.get("generation")):
        return user
    if meta.get("generation", 1) == 1:
        return str(annotations.get(kube.REQUESTED_BY, ""))
    managers = [m for m in meta.get("managedFields") or () if "f:spec" in (m.get("fieldsV1") or {})]
    newest: Mapping[str, Any] = max(managers, key=lambda m: str(m.get("time", "")), default={})
    return f"somebody with {newest['manager']}" if newest.get("manager") else ""
