"""What the controller reads from a node, with what people have said of it. Pure."""

from __future__ import annotations

from typing import Any

from torchrelay.controller.kube.decide.departures import NodeFacts

_CORDON = "node.kubernetes.io/unschedulable"


def read_node(manifest: dict[str, Any], quarantined: str = "") -> NodeFacts:
    spec, status = manifest.get("spec") or {}, manifest.get("status") or {}
    true = tuple(c["type"] for c in status.get("conditions") or () if c.get("status") == "True")
    return NodeFacts(
        manifest["metadata"]["name"],
        bool(spec.get("unschedulable")),
        tuple((t["key"], t.get("effect", "")) for t in spec.get("taints") or () if t["key"] != _CORDON),
        true,
        quarantined,
        "Ready" in true,
    )
